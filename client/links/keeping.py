"""Keeps the target's topics like the source's: existence, partitions, settings, start offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import TidelogError, TopicAlreadyExistsError
from tidelog.client.links.definition import LinkDefinition
from tidelog.client.links.linked import LINK_NAME, LINK_SOURCE, LINK_STATE, LinkAdmin, TargetTopic
from tidelog.client.links.source import Source, SourceCluster
from tidelog.model.names import topic_name_fault
from tidelog.model.settings.config_def import ConfigError, split_list
from tidelog.model.settings.topic_config import TOPIC_CONFIG_DEF

NOT_COPIED: Final = frozenset(
    {
        LINK_NAME,
        LINK_SOURCE,
        LINK_STATE,
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
"""Settings that are meaningful only in their own cluster."""
_MIN_ISR: Final = "min.insync.replicas"


@dataclass(slots=True)
class Kept:
    """``topics``: those that the link fills. ``problems``: why it does not fill others, by name."""

    topics: dict[str, TargetTopic] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def refused(
    definition: LinkDefinition,
    cluster_id: str,
    sources: Mapping[str, Mapping[str, str]],
    there: Mapping[str, TargetTopic],
) -> dict[str, str]:
    """Return why topics of the source cannot be linked into the cluster ``cluster_id``, by name. ``sources``: their
    settings. Pure."""
    found = {}
    for name, settings in sources.items():
        fault = topic_name_fault(name)
        if fault is not None:
            found[name] = fault
        elif cluster_id in chain_of(definition, settings):
            found[name] = (
                f"a link fills {name} at the source with records from this cluster: it would loop; leave the topic out "
                "of --topics, or name another source"
            )
        elif name in there and there[name].link != definition.name:
            what = f"one of link {there[name].link!r}" if there[name].link else "one with records of its own"
            found[name] = f"expected no topic {name} here, found {what}: delete it, or leave it out of the link"
    return found


def chain_of(definition: LinkDefinition, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the clusters that a topic's records come from, the nearest first. Pure."""
    return (definition.cluster_id, *split_list(settings.get(LINK_SOURCE, "")))


def copied(settings: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Return the settings of a source topic that a target with this many replicas adopts. Some of Kafka's settings are
    unknown here, and ``min.insync.replicas`` cannot exceed the replicas. Pure."""
    found = {}
    for name, value in settings.items():
        setting = TOPIC_CONFIG_DEF.settings.get(name)
        if setting is None or name in NOT_COPIED:
            continue
        try:
            setting.parse(value)
        except ConfigError:
            continue
        found[name] = str(min(int(value), replicas)) if name == _MIN_ISR else value
    return found


def chosen(definition: LinkDefinition, cluster: SourceCluster) -> list[str]:
    """Return the source's topics that belong to the link. Pure."""
    names = (name for name, topic in cluster.topics.items() if not topic.is_internal and definition.takes_topic(name))
    return sorted(names)


class TopicKeeper:
    """Creates and changes the topics of one link."""

    def __init__(self, admin: LinkAdmin, source: Source, definition: LinkDefinition, cluster_id: str) -> None:
        self._admin = admin
        self._source = source
        self._definition = definition
        self._cluster_id = cluster_id

    async def keep(self, cluster: SourceCluster) -> Kept:
        """Bring everything up to date once. Raises errors of either cluster, except :class:`LinkError`."""
        names = chosen(self._definition, cluster)
        settings = await self._source.configs(names)
        names = [name for name in names if name in settings]
        there = await self._admin.target_topics(names, self._definition)
        problems = refused(self._definition, self._cluster_id, {name: settings[name] for name in names}, there)
        kept = Kept(problems=problems)
        new = [name for name in names if name not in problems and name not in there]
        if new:
            await self._create(new, cluster, settings, problems)
            there |= await self._admin.target_topics(new, self._definition)
        for name in names:
            topic = there.get(name)
            if topic is None or name in problems or not topic.takes_link:
                continue
            wanted = len(cluster.topics[name].partitions)
            try:
                if wanted > topic.partitions:
                    await self._admin.create_partitions({name: wanted})
                    topic = (await self._admin.target_topics([name], self._definition))[name]
                await self._set(topic, settings[name])
            except TidelogError as error:
                problems[name] = str(error)
            kept.topics[name] = topic
        return kept

    async def _create(
        self,
        names: Iterable[str],
        cluster: SourceCluster,
        settings: Mapping[str, Mapping[str, str]],
        problems: dict[str, str],
    ) -> None:
        brokers = sum(not broker.fenced for broker in (await self._admin.describe_cluster()).brokers)
        for name in names:
            topic = cluster.topics[name]
            own = {
                LINK_NAME: self._definition.name,
                LINK_SOURCE: ",".join(chain_of(self._definition, settings[name])),
            }
            replicas = max(1, min(topic.replicas, brokers))
            item = NewTopic(name, len(topic.partitions), replicas, {**copied(settings[name], replicas), **own})
            try:
                await self._admin.create_topics([item])
            except TopicAlreadyExistsError:
                continue  # another process of this link did it; the next round will see it
            except TidelogError as error:
                problems[name] = str(error)

    async def _set(self, topic: TargetTopic, settings: Mapping[str, str]) -> None:
        wanted = copied(settings, topic.replicas)
        changes = changed(wanted, topic.settings)
        if changes:
            await self._admin.alter_topic_configs(topic.name, changes)


def changed(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str | None]:
    """Return what to set, and what to reset. Pure."""
    changes: dict[str, str | None] = {name: value for name, value in wanted.items() if found.get(name) != value}
    gone: Collection[str] = found.keys() - wanted.keys() - NOT_COPIED
    changes.update(dict.fromkeys(sorted(gone)))
    return changes
