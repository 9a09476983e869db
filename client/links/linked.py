"""What the target cluster knows about its links: definitions, topics, progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.cluster.cluster import Cluster
from tidelog.client.links.definition import SETTING, LinkDefinition, LinkError, read_item
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.model.link_position import Position, read_position
from tidelog.model.settings.config_def import split_list
from tidelog.model.settings.topic_config import DELETE, LINK_ACTIVE
from tidelog.proto.calls.api import ConfigChange, ConfigResource

ALL_BROKERS: Final = ConfigResource("broker", "")
LINK_NAME: Final = "link.name"
LINK_SOURCE: Final = "link.source"
LINK_STATE: Final = "link.state"
_DYNAMIC: Final = "DYNAMIC_TOPIC_CONFIG"
_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """``settings``: the topic's own settings."""

    name: str
    topic_id: TopicId
    partitions: int
    replicas: int
    settings: Mapping[str, str]

    @property
    def link(self) -> str:
        return self.settings.get(LINK_NAME, "")

    @property
    def takes_link(self) -> bool:
        return bool(self.link) and self.settings.get(LINK_STATE, LINK_ACTIVE) == LINK_ACTIVE

    @property
    def policies(self) -> tuple[str, ...]:
        return split_list(self.settings.get("cleanup.policy", DELETE))

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


class LinkAdmin(AsyncAdmin):
    """An admin client of the target for links."""

    def act_for(self, link: str) -> None:
        """Commit offsets and delete records on behalf of this link from now on; refused once the topics are
        promoted."""
        self._link = link

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    async def definitions(self) -> dict[str, LinkDefinition]:
        """Return links by name. Raises :class:`LinkError` for a damaged one."""
        found = (await self.describe_configs([ALL_BROKERS]))[ALL_BROKERS].get(SETTING)
        items = split_list(found.value or "") if found is not None else ()
        return {one.name: one for one in map(read_item, items)}

    async def definition(self, name: str) -> LinkDefinition:
        known = await self.definitions()
        if name not in known:
            raise LinkError(f"expected a link ({', '.join(sorted(known)) or 'none'}), found {name!r}")
        return known[name]

    async def keep_definition(self, definition: LinkDefinition, operation: str) -> None:
        """Change the setting. ``operation``: "append" or "subtract"; both leave other links alone, even under
        concurrent changes."""
        change = ConfigChange(SETTING, operation, definition.item())
        await self.alter_configs({ALL_BROKERS: [change]})

    async def target_topics(self, names: Iterable[str] | None, definition: LinkDefinition) -> dict[str, TargetTopic]:
        """Return those of these topics (default: all) that the link may have and that exist."""
        wanted = None if names is None else set(names)
        listed = [
            topic
            for topic in await self.list_topics()
            if definition.takes_topic(topic.name) and (wanted is None or topic.name in wanted)
        ]
        found = {}
        for start in range(0, len(listed), _AT_ONCE):
            some = listed[start : start + _AT_ONCE]
            described = await self.describe_configs([ConfigResource("topic", topic.name) for topic in some])
            for topic in some:
                values = described[ConfigResource("topic", topic.name)]
                settings = {name: one.value or "" for name, one in values.items() if one.source == _DYNAMIC}
                found[topic.name] = TargetTopic(
                    topic.name, topic.topic_id, topic.partition_count, topic.replication_factor, settings
                )
        return found

    async def linked_topics(self, definition: LinkDefinition) -> dict[str, TargetTopic]:
        """Return the topics of the link, including those whose promotion has not ended."""
        found = await self.target_topics(None, definition)
        return {name: topic for name, topic in found.items() if topic.link == definition.name}

    async def positions(self, definition: LinkDefinition) -> dict[TopicPartition, Position]:
        """Return the link's progress, as it last reported."""
        kept = await self.list_consumer_group_offsets(definition.group)
        read = {at: read_position(one.offset, one.leader_epoch, one.metadata) for at, one in kept.items()}
        return {at: one for at, one in read.items() if one is not None}
