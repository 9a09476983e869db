"""Operations on links: create one, show it, verify it, promote its topics, delete it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin.importing import refused_end
from tidelog.client.admin.transaction_types import AbortTransactionSpec, ProducerState
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.backup.pace import all_of
from tidelog.client.errors import (
    BrokerNotAvailableError,
    GroupIdNotFoundError,
    InvalidProducerEpochError,
    RequestTimedOutError,
    TransactionCoordinatorFencedError,
)
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.client.links.batches import mask_of
from tidelog.client.links.comparing import Comparison
from tidelog.client.links.definition import LinkDefinition, LinkError, define
from tidelog.client.links.following import PARTITION_BYTES_MAX, Between, Follower, Stop
from tidelog.client.links.keeping import Kept, TopicKeeper, chosen, refused
from tidelog.client.links.linked import LINK_NAME, LINK_SOURCE, LINK_STATE, LinkAdmin, TargetTopic
from tidelog.client.links.linking import check_ends
from tidelog.client.links.source import Source
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, Offset, TopicPartition
from tidelog.model.link_position import Position
from tidelog.model.settings.topic_config import LINK_STOPPED
from tidelog.proto.calls.group_api import OffsetCommitPartition, OffsetCommitRequest

SEAL_S: Final = 60.0
"""How long a partition may be without a leader that learns of its promotion."""
_LOOK_AGAIN_S: Final = 0.1
_ASK_MS: Final = 10_000
_NOBODYS_GENERATION: Final = 0
"""A broker that does not refuse the link refuses this generation, so nothing is committed."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is undecided here. ``elsewhere``: partitions of the link in which its producer has already
    ended it; the transaction is torn if it was committed."""

    at: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    elsewhere: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """``positions``: as last reported by the running link, without partitions that it has not checked yet."""

    definition: LinkDefinition
    topics: Mapping[str, TargetTopic]
    positions: Mapping[TopicPartition, Position]
    transactions: Sequence[OpenTransaction]


@dataclass(frozen=True, slots=True)
class Promotion:
    """``ends``: where the topics' own records start. ``positions``: the link's progress as known before, with the
    source's end. ``aborted``: transactions that the promotion has ended."""

    ends: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, Position]
    aborted: Sequence[OpenTransaction]


async def create_link(
    admin: LinkAdmin, source: Source, name: str, bootstrap: str, topics: Sequence[str], groups: Sequence[str]
) -> Kept:
    """Create a link and its topics. Raises :class:`LinkError` if nothing was created."""
    define(name, "", bootstrap, topics, groups)
    theirs = await source.cluster()
    definition = define(name, theirs.cluster_id, bootstrap, topics, groups)
    if name in await admin.definitions():
        raise LinkError(f"expected the name of a new link, found {name!r}, which exists: `tidelog links list`")
    ours, theirs = await check_ends(admin, source, definition)
    names = chosen(definition, theirs)
    settings = await source.configs(names)
    there = await admin.target_topics(names, definition)
    problems = refused(definition, ours, settings, there)
    if problems:
        raise LinkError("; ".join(problems[name] for name in sorted(problems)))
    await admin.keep_definition(definition, "append")
    return await TopicKeeper(admin, source, definition, ours).keep(theirs)


async def delete_link(admin: LinkAdmin, name: str) -> None:
    """Forget a link whose topics were promoted or deleted. Raises :class:`LinkError`."""
    definition = await admin.definition(name)
    left = sorted(await admin.linked_topics(definition))
    if left:
        raise LinkError(
            f"expected a link without topics, found {', '.join(left)}: promote them (`tidelog links promote {name}`) "
            "or delete them first"
        )
    await admin.keep_definition(definition, "subtract")
    try:
        await admin.delete_consumer_groups([definition.group])
    except GroupIdNotFoundError:
        pass


async def status_of(admin: LinkAdmin, name: str) -> LinkStatus:
    """Return everything that the target knows about a link. Raises :class:`LinkError`."""
    definition = await admin.definition(name)
    topics = await admin.linked_topics(definition)
    places = [at for topic in topics.values() for at in topic.places]
    positions = await admin.positions(definition)
    return LinkStatus(
        definition, topics, {at: positions[at] for at in places if at in positions}, await _open(admin, places)
    )


async def level_status(admin: LinkAdmin, name: str, seconds: float) -> LinkStatus:
    """Return :func:`status_of` once everything is here that the source has now, records and groups' commits. Raises
    :class:`LinkError` if that takes longer than ``seconds``, or is impossible."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    asked_ms = admin.cluster.clock.now_ms()
    while True:
        found = await status_of(admin, name)
        stopped = sorted(at for at, one in found.positions.items() if one.reason)
        if stopped:
            raise LinkError(f"{stopped[0]}: {found.positions[stopped[0]].reason}")
        places = [at for topic in found.topics.values() for at in topic.places]
        behind = lagging(found.positions, places, asked_ms)
        if not behind:
            return found
        if loop.time() >= deadline:
            raise LinkError(
                f"expected link {name} to be level within {seconds:g} s, found {len(behind)} of {len(places)} "
                f"partitions, or commits of groups there, behind, such as {behind[0]}: is `tidelog links run {name}` "
                "running, and what does it say?"
            )
        await asyncio.sleep(_LOOK_AGAIN_S)


def lagging(
    positions: Mapping[TopicPartition, Position], places: Iterable[TopicPartition], since_ms: int
) -> list[TopicPartition]:
    """Return the partitions of which records or groups' commits that the source had at ``since_ms`` may be missing."""
    return [at for at in places if at not in positions or positions[at].copied_ms <= since_ms]


# --- Promoting ------------------------------------------------------------------------------------------


async def promote(admin: LinkAdmin, name: str, topics: Collection[str] = ()) -> Promotion:
    """Make topics of a link (default: all) writable. May be repeated if it was interrupted. Raises
    :class:`LinkError`."""
    definition = await admin.definition(name)
    linked = await admin.linked_topics(definition)
    unknown = sorted(set(topics) - linked.keys())
    if unknown or not linked:
        known = ", ".join(sorted(linked)) or "none"
        raise LinkError(f"expected topics of link {name} ({known}), found {', '.join(unknown) or 'none'}")
    chosen_topics = [topic for topic in linked.values() if not topics or topic.name in topics]
    positions = await admin.positions(definition)
    for topic in chosen_topics:
        await admin.alter_topic_configs(topic.name, {LINK_STATE: LINK_STOPPED})
    await all_of(seal(admin, topic, at, name) for topic in chosen_topics for at in topic.places)
    await _seal_groups(admin, definition, chosen_topics)
    places = [at for topic in chosen_topics for at in topic.places]
    aborted: dict[tuple[TopicPartition, int], OpenTransaction] = {}
    while found := await _open(admin, places):
        for one in found:
            aborted.setdefault((one.at, one.producer_id), one)
            await _abort(admin, one)
    ends = await admin.list_offsets({at: OffsetSpec.latest() for at in places})
    for topic in chosen_topics:
        await admin.alter_topic_configs(topic.name, dict.fromkeys((LINK_NAME, LINK_SOURCE, LINK_STATE)))
    return Promotion(
        {at: one.offset for at, one in ends.items()},
        {at: positions[at] for at in places if at in positions},
        tuple(aborted.values()),
    )


async def seal(admin: LinkAdmin, topic: TargetTopic, at: TopicPartition, link: str) -> int:
    """Wait until the partition's leader accepts no more records from the link ("": from others), and the in-sync
    replicas have what it accepted before. Returns where that ends. A later leader also knows the change: it was elected
    after the change of the setting that this one knows."""
    async with asyncio.timeout(SEAL_S):
        while True:
            end = await refused_end(admin.cluster, at, topic.topic_id, patience_s=SEAL_S, link=link)
            if end is not None and (found := (await admin.list_offsets({at: OffsetSpec.latest()}))[at].offset) >= end:
                return found
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _seal_groups(admin: LinkAdmin, definition: LinkDefinition, topics: Iterable[TargetTopic]) -> None:
    """Wait until every live broker refuses the link's commits for these topics, whichever groups it coordinates. A
    later coordinator also knows the change; see :func:`seal`."""
    items = tuple(OffsetCommitPartition(at.topic, at.partition, Offset(0)) for one in topics for at in one.places)
    request = OffsetCommitRequest(definition.group, _NOBODYS_GENERATION, "", None, items, definition.name)
    sealed: set[NodeId] = set()
    async with asyncio.timeout(SEAL_S):
        while True:
            with contextlib.suppress(BrokerNotAvailableError, RequestTimedOutError):
                await admin.cluster.refreshed()
                live = set(admin.cluster.cache.brokers)
                if live and live <= sealed:
                    return
                for node in sorted(live - sealed):
                    answer = await admin.cluster.call(request, timeout_ms=_ASK_MS, node=node)
                    if all(found.error is ErrorCode.INVALID_REQUEST for found in answer.results):
                        sealed.add(node)
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _open(admin: LinkAdmin, places: Iterable[TopicPartition]) -> list[OpenTransaction]:
    return open_transactions(await admin.describe_producers(places))


def open_transactions(found: Mapping[TopicPartition, Sequence[ProducerState]]) -> list[OpenTransaction]:
    """Return the transactions that are open in these partitions, and where their producers have moved on: to a later
    epoch, with which the second protocol marks an end. Pure."""
    later: dict[int, list[tuple[TopicPartition, int]]] = {}
    for at, producers in found.items():
        for one in producers:
            later.setdefault(one.producer_id, []).append((at, one.producer_epoch))
    return [
        OpenTransaction(
            at,
            one.producer_id,
            one.producer_epoch,
            one.current_transaction_start_offset,
            tuple(place for place, epoch in later[one.producer_id] if epoch > one.producer_epoch),
        )
        for at, producers in found.items()
        for one in producers
        if one.current_transaction_start_offset is not None
    ]


async def _abort(admin: LinkAdmin, one: OpenTransaction) -> None:
    known = (await admin.describe_producers([one.at]))[one.at]
    for producer in known:
        if producer.producer_id == one.producer_id and producer.current_transaction_start_offset is not None:
            spec = AbortTransactionSpec(
                one.at, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch or 0
            )
            try:
                await admin.abort_transaction(spec)
            except (InvalidProducerEpochError, TransactionCoordinatorFencedError):
                pass  # somebody else is promoting too


# --- Verifying ------------------------------------------------------------------------------------------


async def verify_link(
    admin: LinkAdmin, source: Source, name: str, topics: Collection[str] = ()
) -> dict[TopicPartition, Comparison]:
    """Compare every batch of the link's topics with the source's. Raises :class:`LinkError`, and errors of both
    clusters."""
    definition = await admin.definition(name)
    ours, cluster = await check_ends(admin, source, definition)
    raw = RawFetcher(admin.cluster, PARTITION_BYTES_MAX)
    between = Between(admin, source, raw, name, mask_of(ours, cluster.cluster_id))
    found: dict[TopicPartition, Comparison] = {}
    try:
        for topic in (await admin.linked_topics(definition)).values():
            if topics and topic.name not in topics:
                continue
            known = cluster.topics.get(topic.name)
            for at in topic.places:
                leader = None if known is None else known.partitions.get(at.partition)
                if known is None or leader is None or leader.leader < 0:
                    found[at] = Comparison(fault="the source has no such partition, or no leader for it")
                    continue
                follower = Follower(
                    between,
                    at,
                    topic.topic_id,
                    known.topic_id,
                    None,
                    policies=topic.policies,
                    now_ms=admin.cluster.clock.now_ms,
                )
                start = (await admin.list_offsets({at: OffsetSpec.earliest()}))[at].offset
                end = (await admin.list_offsets({at: OffsetSpec.latest()}))[at].offset
                try:
                    found[at] = await follower.compared(leader, start, end)
                except Stop as stop:
                    found[at] = Comparison(fault=str(stop))
    finally:
        await raw.close()
    return found
