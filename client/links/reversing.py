"""Planned switch-over: the source is fenced before the promotion, and afterwards gets its records from here.

Both need Tidelog at the source. A *fenced* topic has the settings of a linked one that is being promoted: producers may
not write, but its open transactions may end. It keeps them until a link in the other direction takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidelog.client.admin.importing import refused_end
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.backup.pace import all_of
from tidelog.client.errors import TidelogError
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.client.links.batches import mask_of
from tidelog.client.links.definition import LinkDefinition, LinkError, define
from tidelog.client.links.following import PARTITION_BYTES_MAX, Between, Follower, Stop
from tidelog.client.links.kafka_connection import SourceLost, SourceRefused
from tidelog.client.links.linked import LINK_NAME, LINK_SOURCE, LINK_STATE, LinkAdmin, TargetTopic
from tidelog.client.links.managing import SEAL_S, Promotion, lagging, promote, seal
from tidelog.client.links.source import Source, SourceCluster
from tidelog.model.settings.topic_config import LINK_ACTIVE, LINK_STOPPED

_LOOK_AGAIN_S: Final = 0.1
_REACH_S: Final = 15.0


async def drain(admin: LinkAdmin, old: LinkAdmin, name: str, topics: Collection[str], seconds: float) -> Promotion:
    """Fence the topics at the source (``old``), wait until the running link has copied everything, and promote them.
    Raises :class:`LinkError` if that takes longer than ``seconds``, or a promotion has begun before; the source is then
    as before. If one begins meanwhile, the source stays fenced: it may be another drain's."""
    definition = await admin.definition(name)
    linked = await admin.linked_topics(definition)
    chosen = {one: topic for one, topic in linked.items() if not topics or one in topics}
    if not chosen or set(topics) - chosen.keys():
        raise LinkError(f"expected topics of link {name} ({', '.join(sorted(linked)) or 'none'}), found others")
    if begun := {one for one, topic in chosen.items() if not topic.takes_link}:
        raise _begun(name, begun)
    await expect_tidelog(old, definition)
    fenced = await fence(old, definition, chosen)
    try:
        async with asyncio.timeout(seconds):
            await _brought(admin, definition, old, fenced.values())
    except TidelogError:
        await unfence(old, fenced.values())
        raise
    except TimeoutError:
        await unfence(old, fenced.values())
        raise LinkError(
            f"expected everything to be copied within {seconds:g} s: a transaction is open at the source, or "
            f"the link is slow or not running; the source accepts records again (`tidelog links status {name}`)"
        ) from None
    # The markers of a promotion make the target's log longer, too. Each leader that has one refuses the link.
    for topic in chosen.values():
        for at in topic.places:
            if await refused_end(admin.cluster, at, topic.topic_id, patience_s=SEAL_S, link=name) is not None:
                raise _begun(name, {topic.name}, "; the source still refuses records")
    return await promote(admin, name, chosen)


def _begun(link: str, topics: Iterable[str], more: str = "") -> LinkError:
    return LinkError(
        f"expected topics that link {link} still fills; a promotion of {', '.join(sorted(topics))} has begun. "
        f"`tidelog links promote {link}`, without --drain, ends it; everything is here if a drain began it{more}"
    )


async def _brought(
    admin: LinkAdmin, definition: LinkDefinition, old: LinkAdmin, fenced: Collection[TargetTopic]
) -> None:
    places = [at for topic in fenced for at in topic.places]
    while True:
        known = await old.describe_producers(places)
        if all(one.current_transaction_start_offset is None for some in known.values() for one in some):
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    # A leader knows the end of a transaction before the in-sync replicas have it.
    ends = {at: await seal(old, topic, at, "") for topic in fenced for at in topic.places}
    while True:
        here = await admin.list_offsets({at: OffsetSpec.latest() for at in places})
        if all(here[at].offset >= ends[at] for at in places):
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    asked_ms, names = admin.cluster.clock.now_ms(), {topic.name for topic in fenced}
    while lagging(await admin.positions(definition), places, asked_ms):
        linked = await admin.linked_topics(definition)
        if not all(linked[name].takes_link for name in names & linked.keys()):
            return  # a promotion has begun; the link copies nothing more
        await asyncio.sleep(_LOOK_AGAIN_S)


async def expect_tidelog(old: LinkAdmin, definition: LinkDefinition) -> None:
    """Raise :class:`LinkError` unless the source is the link's, and Tidelog."""
    try:
        found = (await old.describe_cluster(timeout=_REACH_S)).cluster_id
    except TidelogError as error:
        raise LinkError(
            f"expected Tidelog at {','.join(definition.bootstrap)}, found no Tidelog answer: {error}; with Apache "
            "Kafka, stop the producers yourself"
        ) from None
    if found != definition.cluster_id:
        raise LinkError(f"expected cluster {definition.cluster_id} at the source, found {found}")


async def fence(old: LinkAdmin, definition: LinkDefinition, names: Iterable[str]) -> dict[str, TargetTopic]:
    """Stop producers from writing to these topics. Raises :class:`LinkError` for a topic of another link."""
    found = await old.target_topics(names, definition)
    for topic in found.values():
        if topic.link not in ("", definition.name) or topic.takes_link:
            raise LinkError(f"expected topic {topic.name} to be written by producers at the source, found it linked")
    for topic in found.values():
        await old.alter_topic_configs(topic.name, {LINK_NAME: definition.name, LINK_STATE: LINK_STOPPED})
    await all_of(seal(old, topic, at, "") for topic in found.values() for at in topic.places)
    return found


async def unfence(old: LinkAdmin, topics: Iterable[TargetTopic]) -> None:
    for topic in topics:
        before = {name: topic.settings.get(name) for name in (LINK_NAME, LINK_STATE)}
        await old.alter_topic_configs(topic.name, before)


async def reverse(
    admin: LinkAdmin, here: Source, old: LinkAdmin, name: str, bootstrap: str
) -> tuple[LinkDefinition, list[str]]:
    """Create the link ``name`` at its old source: that cluster's topics continue with what is written here since their
    promotion. ``here``: this cluster as a source, at ``bootstrap``. Raises :class:`LinkError`, with nothing changed, if
    a log there is not a prefix of the one here."""
    definition = await admin.definition(name)
    await expect_tidelog(old, definition)
    left = sorted(await admin.linked_topics(definition))
    if left:
        raise LinkError(f"expected all topics of link {name} to be promoted, found {', '.join(left)}")
    cluster = await here.cluster()
    ours = (await admin.describe_cluster()).cluster_id
    if cluster.cluster_id != ours:
        raise LinkError(f"expected this cluster ({ours}) at {bootstrap}, found {cluster.cluster_id}")
    back = define(name, ours, bootstrap, definition.topics, definition.groups)
    there = (await old.definitions()).get(name)
    if there not in (None, back):
        raise LinkError(f"expected no link {name!r} at the old source, found one")
    names = [one for one in cluster.topics if definition.takes_topic(one) and not cluster.topics[one].is_internal]
    # An earlier, unfinished command may have reversed some already.
    turned = {} if there is None else await old.linked_topics(back)
    turned = {one: topic for one, topic in turned.items() if topic.takes_link}
    fenced = await fence(old, definition, set(names) - turned.keys())
    try:
        faults = await _differences(old, here, cluster, fenced, back)
        if faults:
            raise LinkError("; ".join(faults))
    except (LinkError, TidelogError, SourceLost, SourceRefused):
        await unfence(old, fenced.values())
        raise
    if there is None:
        await old.keep_definition(back, "append")
    for topic in fenced.values():
        await old.alter_topic_configs(topic.name, {LINK_STATE: LINK_ACTIVE, LINK_SOURCE: ours})
    return back, sorted({*fenced, *turned})


async def _differences(
    old: LinkAdmin, here: Source, cluster: SourceCluster, topics: Mapping[str, TargetTopic], back: LinkDefinition
) -> list[str]:
    """Return why logs at the old source cannot continue with what is here."""
    raw = RawFetcher(old.cluster, PARTITION_BYTES_MAX)
    between = Between(old, here, raw, back.name, mask_of(back.cluster_id, (await old.describe_cluster()).cluster_id))
    places = [at for topic in topics.values() for at in topic.places]
    faults = [
        f"{at}: a transaction is open at the old source: wait until it has ended"
        for at, producers in (await old.describe_producers(places)).items()
        if any(one.current_transaction_start_offset is not None for one in producers)
    ]
    try:
        for topic in topics.values():
            source = cluster.topics[topic.name]
            for at in topic.places:
                leader = source.partitions.get(at.partition)
                start = (await old.list_offsets({at: OffsetSpec.earliest()}))[at].offset
                end = (await old.list_offsets({at: OffsetSpec.latest()}))[at].offset
                if leader is None or leader.leader < 0:
                    faults.append(f"{at}: this cluster has no such partition, or no leader for it")
                    continue
                follower = Follower(
                    between, at, topic.topic_id, source.topic_id, None,
                    policies=topic.policies, now_ms=old.cluster.clock.now_ms,
                )  # fmt: skip
                try:
                    found = (await follower.compared(leader, start, end)).fault
                except Stop as stop:
                    found = str(stop)
                if found:
                    faults.append(
                        f"{at}: here is the source, the target is the old one: {found}; delete the topic at the old "
                        "source, and the link copies it again"
                    )
    finally:
        await raw.close()
    return faults
