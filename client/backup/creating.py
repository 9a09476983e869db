"""Makes a backup: copies every partition nearly to its end, takes the cut, and copies the rest.

The bulk comes first, so that the cut lies after everything that was copied: anything that compaction removed before we
came was replaced by something before the cut. Each piece comes from the partition's leader, through a consumer's fetch,
below the high watermark. A leader says if what we have is not in its log (after an unclean election); then the
partition's file is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.backup.cut import Cut, take_cut
from tidelog.client.backup.pace import Pace, all_of
from tidelog.client.errors import OffsetOutOfRangeError, TidelogError, UnknownTopicOrPartitionError
from tidelog.client.fetching.offset_lookup import look_up
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.model.names import is_delay_service
from tidelog.proto.backups.copying import FETCH_BYTES, PartitionFile
from tidelog.proto.backups.manifest import BackupError, Manifest, PartitionPart, QuotaPart, TopicPart
from tidelog.proto.backups.place import Place
from tidelog.proto.calls.acl_api import AclEntry, entry_of
from tidelog.proto.calls.api import EARLIEST_TIMESTAMP, ConfigResource
from tidelog.proto.records.batches import split_batches
from tidelog.proto.transport.frames import (
    FetchedPartition,
)
from tidelog.proto.transport.network import ConnectionLost

AT_ONCE: Final = 4
"""How many partitions to copy at a time; each holds :data:`FETCH_BYTES` in memory."""
PATIENCE_S: Final = 60.0
"""How long a partition may be without a leader that answers."""
_ANSWER_S: Final = 30.0
_DYNAMIC_TOPIC: Final = "DYNAMIC_TOPIC_CONFIG"


class BackupMaker(AsyncAdmin):
    """An admin client that makes backups."""

    _raw: RawFetcher | None = None

    async def close(self) -> None:
        if self._raw is not None:
            await self._raw.close()
        await super().close()

    async def create_backup(
        self, place: Place, *, throttle: int | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        """Back up the cluster's topics, groups and metadata to a new or empty place. ``throttle``: bytes per second.
        Raises :class:`BackupError`, :class:`OSError`, and errors of the cluster; what was written then is not a backup,
        and you have to remove it."""
        self._check()
        self._raw = RawFetcher(self._cluster, FETCH_BYTES)
        await asyncio.to_thread(place.make)
        pace = Pace(throttle, lambda moved: tell(f"{moved / 1e6:,.0f} MB copied"))
        files: dict[TopicPartition, PartitionFile] = {}
        ids: dict[str, TopicId] = {}
        for topic in await self.list_topics():
            for number in range(topic.partition_count):
                at = TopicPartition(topic.name, number)
                files[at] = await asyncio.to_thread(PartitionFile, at, place)
            ids[topic.name] = topic.topic_id
        await self._copy(files.values(), None, pace)
        cut = await take_cut(self._cluster)
        tell(f"cut taken: no transaction could end for {cut.held_ms} ms")
        _expect_same(cut, ids)
        for at in cut.ends:
            if at not in files:
                files[at] = await asyncio.to_thread(PartitionFile, at, place)
        chosen = {at: files[at] for at in cut.ends}
        for at in files.keys() - chosen.keys():
            await asyncio.to_thread(files[at].drop)
        await self._copy(chosen.values(), cut, pace)
        now_ms = self._cluster.clock.now_ms()
        parts = await self._finish(chosen, cut, now_ms)
        producer_ids = [file.transactions.producer_id_max for file in chosen.values()]
        manifest = await self._manifest(cut, parts, max(producer_ids, default=-1))
        await asyncio.to_thread(place.write_manifest, manifest.to_json())
        return manifest

    # --- Records --------------------------------------------------------------------------------------

    async def _copy(self, files: Iterable[PartitionFile], cut: Cut | None, pace: Pace) -> None:
        """Copy up to the cut, or up to the current high watermark of each partition."""
        room = asyncio.Semaphore(AT_ONCE)

        async def copy(file: PartitionFile) -> None:
            async with room:
                await self._copy_one(file, None if cut is None else cut.ends[file.at], pace)

        await all_of(map(copy, files))

    async def _finish(
        self, files: dict[TopicPartition, PartitionFile], cut: Cut, now_ms: int
    ) -> dict[TopicPartition, PartitionPart]:
        room = asyncio.Semaphore(AT_ONCE)
        parts: dict[TopicPartition, PartitionPart] = {}

        async def finish(at: TopicPartition, file: PartitionFile) -> None:
            async with room:
                parts[at] = await asyncio.to_thread(file.finish, cut.ends[at], now_ms)

        await all_of(finish(at, file) for at, file in files.items())
        return parts

    async def _copy_one(self, file: PartitionFile, end: int | None, pace: Pace) -> None:
        loop = asyncio.get_running_loop()
        came_on_at = loop.time()
        while end is None or file.position < end:
            try:
                found = await self._fetch(file, end is None)
                if found is None:
                    return
                if end is None:
                    end = found.high_watermark
                before = file.position
                for records in found.records:
                    batches = [batch for batch in split_batches(records) if batch.base_offset < end]
                    await pace.take(await asyncio.to_thread(file.append, batches))
                if file.position > before:
                    came_on_at = loop.time()
                    continue
                if not found.records and found.high_watermark >= end:
                    return  # compaction has left nothing up to there
            except OffsetOutOfRangeError:
                bounds = await self._earliest(file.at)
                await asyncio.to_thread(file.begin, bounds)
                continue
            except (TidelogError, ConnectionLost, TimeoutError) as error:
                if isinstance(error, TidelogError) and not error.retriable:
                    raise
                if loop.time() - came_on_at > PATIENCE_S:
                    raise BackupError(f"{file.at}: no leader has answered for {PATIENCE_S:g} s: {error}") from error
            self._cluster.request_refresh()
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    async def _earliest(self, at: TopicPartition) -> int:
        found = await look_up(
            self._cluster, {at: EARLIEST_TIMESTAMP}, read_committed=False, timeout_ms=self._timeout_ms(None)
        )
        return found[at].offset

    async def _fetch(self, file: PartitionFile, may_be_gone: bool) -> FetchedPartition | None:
        """Return what the leader has from the file's position on; None if the topic was deleted. Raises retriable
        errors."""
        at = file.at
        try:
            await self._cluster.topic(at.topic, self._timeout_ms(None))
        except UnknownTopicOrPartitionError:
            if may_be_gone:
                return None
            raise BackupError(f"topic {at.topic} was deleted during the copy: make the backup again") from None
        if not file.size and file.position == 0:
            await asyncio.to_thread(file.begin, await self._earliest(at))
        assert self._raw is not None
        return await self._raw.fetch(at, file.position, file.last_epoch, self._timeout_ms(None))

    # --- Metadata -------------------------------------------------------------------------------------

    async def _manifest(self, cut: Cut, parts: dict[TopicPartition, PartitionPart], producer_id_max: int) -> Manifest:
        names = [topic.name for topic in cut.topics]
        found = await self.describe_configs([ConfigResource("topic", name) for name in names]) if names else {}
        configs = {
            resource.name: {name: one.value or "" for name, one in values.items() if one.source == _DYNAMIC_TOPIC}
            for resource, values in found.items()
        }
        topics = tuple(
            TopicPart(
                topic.name,
                topic.topic_id.hex(),
                len(topic.partitions[0].replicas),
                configs[topic.name],
                tuple(parts[TopicPartition(topic.name, part.partition)] for part in topic.partitions),
            )
            for topic in sorted(cut.topics, key=lambda one: one.name)
        )
        cluster = await self.describe_cluster()
        kept = {topic.name: len(topic.partitions) for topic in topics}
        groups = {
            group: tuple(one for one in offsets if one.partition < kept.get(one.topic, 0))
            for group, offsets in cut.groups.items()
            if not is_delay_service(group)  # it names the topic by its id, which a restored one has not
        }
        quotas = await self.describe_client_quotas()
        users = await self.describe_user_scram_credentials()
        return Manifest(
            cluster.cluster_id,
            self._cluster.clock.now_ms(),
            cut.held_ms,
            producer_id_max + 1,
            topics,
            {group: offsets for group, offsets in groups.items() if offsets},
            cut.ledgers,
            await self._acls(),
            tuple(QuotaPart((who.user, who.client_id, who.ip), values) for who, values in quotas.items()),
            tuple(sorted(users)),
        )

    async def _acls(self) -> tuple[tuple[str, ...], ...] | None:
        try:
            found = await self.describe_acls()
        except TidelogError as error:
            if error.code is ErrorCode.SECURITY_DISABLED:
                return None
            raise
        return tuple(sorted(_texts(entry_of(acl)) for acl in found))


def _texts(entry: AclEntry) -> tuple[str, ...]:
    return (
        entry.resource_type, entry.resource_name, entry.pattern_type, entry.principal, entry.host, entry.operation,
        entry.permission,
    )  # fmt: skip


def _expect_same(cut: Cut, ids: dict[str, TopicId]) -> None:
    for topic in cut.topics:
        if ids.get(topic.name, topic.topic_id) != topic.topic_id:
            raise BackupError(f"topic {topic.name} was deleted and created again in the meantime: try again")
