"""Restores a backup into an empty cluster: topics with their ids, records at their offsets, groups.

Each file is read once, and checked on the way. Damage shows before any group has offsets; then the topics are deleted
again. A killed restore can be repeated: it recognizes its topics by their ids, which no other topic can have, and
continues where each partition's log ends. Groups' offsets come last, so a group that has any offsets of the backup has
all the records that they refer to.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.admin.importing import import_file, import_records
from tidelog.client.admin.types import NewTopic, OffsetSpec
from tidelog.client.backup.pace import Pace, all_of
from tidelog.client.errors import exception_for
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.sinks import SinkJob
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import ProducerId, TopicId, TopicPartition
from tidelog.model.settings.topic_config import COMPACT, DELETE
from tidelog.proto.backups.bringing import bring, examination_of
from tidelog.proto.backups.copying import Piece
from tidelog.proto.backups.manifest import BackupError, Damaged, Manifest, PartitionPart, TopicPart
from tidelog.proto.backups.place import Directory, Place
from tidelog.proto.backups.verifying import survey, verify
from tidelog.proto.calls.acl_api import AclEntry, binding_of
from tidelog.proto.calls.api import CreateTopicsRequest, CreateTopicsResponse
from tidelog.proto.calls.api import NewTopic as NewTopicItem
from tidelog.proto.calls.backup_api import AdvanceProducerIdsRequest, AdvanceProducerIdsResponse
from tidelog.security.acls import AclBinding

AT_ONCE: Final = 4
"""How many partitions to fill at a time."""
SHOWN: Final = 5
"""How many names a refusal lists."""
PATIENCE_S: Final = 120.0
"""How long a partition may accept nothing."""


class BackupRestorer(AsyncAdmin):
    """An admin client that restores backups."""

    async def restore(
        self,
        place: Place,
        *,
        replicas: int | None = None,
        beside_others: bool = False,
        throttle: int | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Manifest:
        """Restore a whole backup. ``replicas``: another replication factor for all topics; ``beside_others``: the
        cluster may have other topics and groups; ``throttle``: bytes per second. Raises :class:`BackupError` before
        anything is changed if the cluster is not empty, or files of the backup are missing or truncated. If a file's
        content is damaged, the topics that this call created are deleted again. Later errors say what happened;
        repeating the call continues."""
        self._check()
        manifest = await asyncio.to_thread(survey, place)
        if replicas is not None:
            topics = (replace(topic, replication_factor=replicas) for topic in manifest.topics)
            manifest = replace(manifest, topics=tuple(topics))
        acls = _bindings(manifest)
        there = await self._check_topics(manifest)
        await self._check_groups(manifest)
        if not beside_others:
            await self._check_empty(manifest)
        await self._check_quotas(manifest)
        if acls:
            await self.describe_acls()  # a cluster without an authorizer refuses
        taken = await self._advance_producer_ids(AdvanceProducerIdsRequest(ProducerId(manifest.producer_ids_below)))
        new = [topic for topic in manifest.topics if topic.name not in there]
        await self._create(new)
        pace = Pace(throttle, lambda moved: tell(f"{moved / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB restored"))
        try:
            await self._fill(place, manifest, pace, tell)
        except Damaged as damage:
            await self._take_back(place, [topic.name for topic in new], None if there else taken, damage)
        await self._move_starts(manifest)
        for ledger in manifest.ledgers:
            await self.commit_sink_batch(SinkJob(ledger.sink, ledger.batch, ledger.job), ())
        if acls:
            await self.create_acls(acls)
        if manifest.quotas:
            await self.alter_client_quotas({ClientQuotaEntity(*one.entity): one.values for one in manifest.quotas})
        for group, offsets in manifest.groups.items():
            wanted = {
                TopicPartition(one.topic, one.partition): OffsetAndMetadata(one.offset, -1, one.metadata)
                for one in offsets
            }
            await self.alter_consumer_group_offsets(group, wanted)
        return manifest

    # --- Before anything is changed -------------------------------------------------------------------

    async def _check_topics(self, manifest: Manifest) -> set[str]:
        """Return the topics that an earlier attempt created."""
        found = {topic.name: topic for topic in await self.list_topics()}
        ours = set()
        for topic in manifest.topics:
            known = found.get(topic.name)
            if known is None:
                continue
            if known.topic_id.hex() != topic.topic_id or known.partition_count != len(topic.partitions):
                raise BackupError(
                    f"expected a cluster without a topic {topic.name!r}, found one: restore into another cluster, or "
                    "delete the topic if nobody needs it"
                )
            ours.add(topic.name)
        brokers = sum(not broker.fenced for broker in (await self.describe_cluster()).brokers)
        wanted = max((topic.replication_factor for topic in manifest.topics), default=0)
        if wanted > brokers:
            raise BackupError(
                f"expected {wanted} live brokers, as many as topics have replicas, found {brokers}: start more, or use "
                "fewer replicas (--replicas)"
            )
        ends = await self._ends(topic for topic in manifest.topics if topic.name in ours)
        for at, end in ends.items():
            part = next(t for t in manifest.topics if t.name == at.topic).partitions[at.partition]
            if end > part.end:
                raise BackupError(
                    f"{at}: expected at most the backup's records, up to offset {part.end}, found {end}: somebody has "
                    "written to the topic since; you cannot restore into this cluster"
                )
        return ours

    async def _check_groups(self, manifest: Manifest) -> None:
        known = {group.group_id for group in await self.list_groups()} & manifest.groups.keys()
        if not known:
            return
        found = await self.list_consumer_group_offsets(dict.fromkeys(known))
        for group, offsets in found.items():
            ours = {TopicPartition(one.topic, one.partition): one.offset for one in manifest.groups[group]}
            if any(ours.get(at) != one.offset for at, one in offsets.items()):
                raise BackupError(
                    f"expected a cluster without a group {group!r}, found one with offsets of its own: restore into "
                    "another cluster, or delete the group if nobody needs it"
                )

    async def _check_empty(self, manifest: Manifest) -> None:
        own = {topic.name for topic in manifest.topics}
        topics = sorted({topic.name for topic in await self.list_topics()} - own)
        groups = sorted({group.group_id for group in await self.list_groups()} - manifest.groups.keys())
        found = [
            f"{kind} {', '.join(map(repr, names[:SHOWN]))}"
            + (f" and {len(names) - SHOWN} more" if names[SHOWN:] else "")
            for kind, names in (("topics", topics), ("groups", groups))
            if names
        ]
        if found:
            raise BackupError(
                f"expected an empty cluster, found {', '.join(found)}: restore into a new cluster, or allow these to "
                "stay beside what is restored (--beside-others)"
            )

    async def _check_quotas(self, manifest: Manifest) -> None:
        found = await self.describe_client_quotas() if manifest.quotas else {}
        for one in manifest.quotas:
            entity = ClientQuotaEntity(*one.entity)
            if found.get(entity, one.values) != one.values:
                raise BackupError(f"expected no other quotas of {entity}, found {found[entity]}: remove them first")

    # --- Topics -----------------------------------------------------------------------------------------

    async def _advance_producer_ids(self, request: AdvanceProducerIdsRequest) -> AdvanceProducerIdsResponse:
        answer: AdvanceProducerIdsResponse = await self._ask(request, lambda r: (r,), None)
        if answer.error is ErrorCode.INVALID_REQUEST:
            raise BackupError(answer.error_message)
        if answer.error is not ErrorCode.NONE:
            raise exception_for(answer.error, answer.error_message or answer.error.name)
        return answer

    async def _create(self, topics: list[TopicPart]) -> None:
        def part(items: tuple[NewTopicItem, ...], timeout_ms: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(items, timeout_ms)

        for topic in topics:
            item = NewTopic(topic.name, len(topic.partitions), topic.replication_factor, topic.configs).item()
            item = replace(item, topic_id=TopicId(bytes.fromhex(topic.topic_id)))
            answer: CreateTopicsResponse = await self._ask_by_topic(part, (item,), None)
            (made,) = answer.topics
            if made.error is not ErrorCode.NONE:
                raise exception_for(made.error, f"{topic.name}: {made.error_message or made.error.name}")
            if made.topic_id != item.topic_id:
                raise BackupError(f"{topic.name}: a broker of an older release gave it another id: upgrade all nodes")

    async def _take_back(
        self, place: Place, made: Sequence[str], ids: AdvanceProducerIdsResponse | None, damage: Damaged
    ) -> NoReturn:
        """Delete what this call made, and say everything that is wrong with the backup. What an earlier call made may
        be the only copy that is left. ``ids`` are given back, unless somebody got one meanwhile; none may be if records
        stay that bear some of them."""
        if made:
            await self.delete_topics(made)
        if ids is not None:
            with suppress(BackupError):
                await self._advance_producer_ids(
                    AdvanceProducerIdsRequest(ids.next_producer_id, ids.former_producer_id)
                )
        try:
            await asyncio.to_thread(verify, place)
        except Damaged as error:
            damage = error
        taken = "created from it were deleted again" if made else "were created or deleted"
        raise Damaged(f"{damage}; {len(made) or 'no'} topics {taken}") from None

    # --- Records ----------------------------------------------------------------------------------------

    async def _fill(self, place: Place, manifest: Manifest, pace: Pace, tell: Callable[[str], None]) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        there = None
        if isinstance(place, Directory) and not pace.is_limited:
            there = await asyncio.to_thread(_found_at, place)
        told = False

        async def fill(topic: TopicPart, part: PartitionPart) -> None:
            nonlocal told
            async with room:
                why = "" if there is None else await self._read_by_leader(*there, topic, part, pace)
                if why is None:
                    return
                if why and not told:
                    told = True
                    tell(f"records are sent, as their leader does not read the backup itself: {why}")
                await self._fill_one(place, topic, part, pace)

        await all_of(fill(topic, part) for topic in manifest.topics for part in topic.partitions)
        for at, end in (await self._ends(manifest.topics)).items():
            wanted = next(topic for topic in manifest.topics if topic.name == at.topic).partitions[at.partition].end
            if end != wanted:
                raise BackupError(
                    f"{at}: expected the log to end at {wanted}, found {end}: somebody is writing to the cluster; keep "
                    "clients away until the restore is done"
                )

    async def _fill_one(self, place: Place, topic: TopicPart, part: PartitionPart, pace: Pace) -> None:
        at = TopicPartition(topic.name, part.partition)
        end: int = (await self.list_offsets({at: OffsetSpec.latest()}))[at].offset

        async def put(end: int, piece: Piece) -> None:
            await pace.take(len(piece.batches))
            await self._import(at, topic, end, piece)

        await bring(examination_of(place, topic.name, part), part, end, put)

    async def _read_by_leader(
        self, path: str, manifest_sha256: str, topic: TopicPart, part: PartitionPart, pace: Pace
    ) -> str | None:
        """Let the leader read a partition's file itself, if it does. Returns why it does not."""
        at = TopicPartition(topic.name, part.partition)
        topic_id = TopicId(bytes.fromhex(topic.topic_id))
        answer = await import_file(
            self._cluster, at, topic_id, path, manifest_sha256, patience_s=PATIENCE_S, read=pace.take
        )
        if answer.error is ErrorCode.CORRUPT_MESSAGE:
            raise Damaged(answer.error_message)
        return None if answer.done else answer.error_message or "its release is an earlier one"

    async def _import(self, at: TopicPartition, topic: TopicPart, end: int, piece: Piece) -> None:
        """Import one piece after ``end``. Repeating it is harmless."""
        topic_id = TopicId(bytes.fromhex(topic.topic_id))
        await import_records(self._cluster, at, topic_id, end, piece.batches, patience_s=PATIENCE_S)

    async def _ends(self, topics: Iterable[TopicPart]) -> Mapping[TopicPartition, int]:
        wanted = {
            TopicPartition(topic.name, part.partition): OffsetSpec.latest()
            for topic in topics
            for part in topic.partitions
        }
        found = await self.list_offsets(wanted) if wanted else {}
        return {at: one.offset for at, one in found.items()}

    async def _move_starts(self, manifest: Manifest) -> None:
        """Move the logs' start offsets. (A log that is only compacted cannot be cut; it has no records before its
        start.)"""
        wanted = {}
        for topic in manifest.topics:
            policies = topic.configs.get("cleanup.policy", DELETE).replace(" ", "").split(",")
            if COMPACT in policies and DELETE not in policies:
                continue
            for part in topic.partitions:
                if part.start:
                    wanted[TopicPartition(topic.name, part.partition)] = part.start
        if wanted:
            await self.delete_records(wanted)


def _found_at(place: Directory) -> tuple[str, str]:
    """Return where another process finds a backup, and the hash of its manifest."""
    return os.path.realpath(place.path), hashlib.sha256(place.read_manifest()).hexdigest()


def _bindings(manifest: Manifest) -> list[AclBinding]:
    found = []
    for fields in manifest.acls or ():
        acl = binding_of(AclEntry(*fields))
        if isinstance(acl, Refusal):
            raise BackupError(f"expected access control lists that this release knows, found {fields}: {acl.message}")
        found.append(acl)
    return found
