"""One partition of a link: where it stands, and the two things that are done with it, preparing and importing.

============  ====================================================  ==========================================
state         what is known                                         next
============  ====================================================  ==========================================
unknown       nothing since the start, or since an import failed    :meth:`Follower.prepare`
known         up to ``position`` the target has what the source     a fetch, under the leader epoch that was
              had under the leader epoch ``checked``                checked; under a newer one, *prepare*
stopped       ``reason``: source and target are different logs,     nothing, until somebody has looked
              or the source has something that cannot be taken
============  ====================================================  ==========================================

A position is found from the target's log alone. What lies between the kept position (at most some seconds old) and the
log's end is compared with the source, batch by batch; before that, the source's leader says where the leader epoch of
the last batch ends, as followers ask (KIP-101).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin.importing import import_records
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import TidelogError
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.client.links.batches import OldFormat, batches_of, fresh, relabelled
from tidelog.client.links.comparing import Comparison, compare
from tidelog.client.links.kafka_connection import SourceLost
from tidelog.client.links.linked import LinkAdmin
from tidelog.client.links.source import EARLIEST, Fetched, Source, SourcePartition, Wanted, error_name
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.model.link_position import Position
from tidelog.model.settings.topic_config import COMPACT, DELETE
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.records.spans import gap_batch

PARTITION_BYTES_MAX: Final = 4 * 2**20
"""Maximum bytes of one partition in a fetch; a larger batch comes whole."""
BATCH_BYTES_MAX: Final = 15 * 2**20
"""Largest batch that a link can transfer: a call has at most 16 MiB."""
IMPORT_S: Final = 60.0
"""How long a target partition may have no leader that accepts records, before its position is looked up again."""
COMPARE_WAIT_MS: Final = 0


class State(enum.Enum):
    UNKNOWN = "unknown"
    KNOWN = "known"
    STOPPED = "stopped"


class NotLeader(SourceLost):
    """The source's leader has changed; request its metadata again."""

    def __init__(self) -> None:
        super().__init__("the source's leader changed during the request: ask again")


class Stop(Exception):
    """Why a partition cannot continue."""


MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass(frozen=True, slots=True)
class Between:
    """What all partitions of a running link share."""

    admin: LinkAdmin
    source: Source
    raw: RawFetcher
    link: str
    mask: int


class Follower:
    """See the module. ``kept``: the position stored in the target cluster, if any."""

    def __init__(
        self,
        between: Between,
        at: TopicPartition,
        topic_id: TopicId,
        source_id: str,
        kept: Position | None,
        *,
        policies: tuple[str, ...],
        now_ms: Callable[[], int],
    ) -> None:
        self._between = between
        self._now_ms = now_ms
        self.at = at
        self.topic_id = topic_id
        self.source_id = source_id
        self.compacts = COMPACT in policies
        self.only_compacts = self.compacts and DELETE not in policies
        self.kept = kept
        self.state = State.UNKNOWN
        self.reason = ""
        self.trouble = ""
        """Why it makes no progress at the moment, though it keeps trying."""
        self.leader = SourcePartition(-1, -1)
        self.checked = -1
        self.position = 0
        self._found = False
        """Whether the position is the log's end at the target."""
        self.fetch_offset = 0
        """Where to fetch: after ``position`` if the source no longer has anything in between."""
        self.epoch = -1
        self.source_end = -1 if kept is None else kept.source_end
        self.source_start = -1
        self.target_start = -1
        self.level_ms = now_ms() if kept is None else kept.level_ms
        self.told_ms = now_ms()
        self.copied_ms = 0 if kept is None else kept.copied_ms
        self.imported = 0
        if kept is not None and kept.source_id != source_id:
            self.replaced()

    # --- What is known --------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it can be fetched."""
        return self.state is State.KNOWN and self.leader.leader >= 0 and self.checked == self.leader.leader_epoch

    @property
    def is_level(self) -> bool:
        """Whether nothing was left to fetch at ``level_ms``, nor since."""
        return self.state is State.KNOWN and 0 <= self.source_end <= self.position

    @property
    def needs_preparation(self) -> bool:
        return self.state is not State.STOPPED and self.leader.leader >= 0 and not self.ready

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.at, self.source_id, self.fetch_offset, self.checked)

    def as_position(self) -> Position | None:
        """Return what to store in the target cluster; ``None`` if nothing is known."""
        if self.state is State.UNKNOWN:
            return None
        offset, epoch, source_id = self.position, self.epoch, self.source_id
        if not self._found:
            kept = self.kept
            offset, epoch, source_id = (0, -1, source_id) if kept is None else (kept.offset, kept.epoch, kept.source_id)
        return Position(
            offset, epoch, source_id, self.source_end, self.told_ms, self.level_ms, self.reason, self.copied_ms
        )

    def forget(self, trouble: str) -> None:
        """Forget the position: the target's log may have grown by unknown records, or lost something."""
        self.trouble = trouble
        if self.state is State.KNOWN:
            self.kept = self.as_position()
            self.state, self._found = State.UNKNOWN, False

    def replaced(self) -> None:
        """Note that the source has another topic with this name."""
        self._stop(
            "the topic at the source was deleted and created again: promote this one to keep it, or delete it to start "
            "anew"
        )

    def _stop(self, reason: str) -> None:
        self.state, self.reason = State.STOPPED, reason

    # --- Preparing ------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find the position, and check that the source's current leader has what lies before it. Raises
        :class:`NotLeader`, and errors of either cluster."""
        leader = self.leader
        try:
            if self.state is State.UNKNOWN:
                await self._find(leader)
            else:
                await self._check(leader, self.position, self.epoch)
            self.checked = leader.leader_epoch
            self.trouble = ""
        except Stop as stop:
            self._stop(str(stop))

    async def _find(self, leader: SourcePartition) -> None:
        between = self._between
        end = await self._import(0, b"")
        first = await between.admin.list_offsets({self.at: OffsetSpec.earliest()})
        self.target_start = first[self.at].offset
        kept = self.kept
        if kept is not None and kept.offset <= end:
            start, epoch = kept.offset, kept.epoch
            await self._check(leader, start, epoch)
        else:  # nothing is known about it, or the target has lost records
            start, epoch = 0, -1
        start = max(start, self.target_start)
        if start < end:
            found = await self.compared(leader, start, end)
            if found.fault:
                raise Stop(self._diverged(found.fault))
            epoch = max(epoch, found.epoch)
        self.position = self.fetch_offset = end
        self.epoch = epoch
        self.state, self._found = State.KNOWN, True

    async def _check(self, leader: SourcePartition, position: int, epoch: int) -> None:
        """Check that the source's log up to ``position`` is the one that was copied. Source: KIP-101, KIP-320."""
        if not position or epoch < 0:
            return
        source = self._between.source
        error, found, end = await source.epoch_end(leader.leader, self.at, leader.leader_epoch, epoch)
        self._expect(error)
        if found == epoch and end >= position:
            return
        if position <= await self._earliest(leader):
            return  # everything before it was deleted at the source
        raise Stop(self._diverged(f"at offset {position}, leader epoch {epoch} of the source has ended at {end}"))

    async def compared(self, leader: SourcePartition, start: int, end: int) -> Comparison:
        """Compare what lies between, as far as the source still has it."""
        start = max(start, await self._earliest(leader))

        async def theirs(offset: int) -> list[Batch]:
            found = await self._fetched_for_comparison(leader, offset)
            return batches_of(found.records)

        async def ours(offset: int) -> list[Batch]:
            found = await self._between.raw.fetch(self.at, offset, -1, int(IMPORT_S * 1000))
            return [batch for records in found.records for batch in split_batches(records)]

        try:
            return await compare(theirs, ours, start, end, self._between.mask, compacts=self.compacts)
        except OldFormat as error:
            raise Stop(str(error)) from None
        except CorruptBatch as error:
            raise SourceLost(f"{self.at}: {error}") from None

    async def _fetched_for_comparison(self, leader: SourcePartition, offset: int) -> Fetched:
        wanted = Wanted(self.at, self.source_id, offset, leader.leader_epoch)
        found = await self._between.source.fetch(
            leader.leader,
            [wanted],
            wait_ms=COMPARE_WAIT_MS,
            bytes_max=PARTITION_BYTES_MAX,
            partition_bytes_max=PARTITION_BYTES_MAX,
            purpose="comparison",
        )
        self._expect(found[self.at].error)
        return found[self.at]

    async def _earliest(self, leader: SourcePartition) -> int:
        error, offset = await self._between.source.offset(leader.leader, self.at, leader.leader_epoch, EARLIEST)
        self._expect(error)
        self.source_start = offset
        return offset

    def _expect(self, error: int) -> None:
        if error in MOVED:
            raise NotLeader
        if error:
            raise SourceLost(f"{self.at}: the source answers {error_name(error)}")

    def _diverged(self, what: str) -> str:
        return (
            f"{what}: the source has lost records that are here (after an unclean election), or somebody has written "
            "here; nothing was truncated. Promote the topic to keep these records, or delete it here to copy it again"
        )

    # --- Importing ------------------------------------------------------------------------------------

    async def take(self, found: Fetched) -> None:
        """Take a fetch's data. Raises :class:`NotLeader`, and errors of either cluster."""
        try:
            await self._take(found)
        except Stop as stop:
            self._stop(str(stop))
        except (OldFormat, CorruptBatch) as error:
            if isinstance(error, OldFormat):
                self._stop(str(error))
            else:
                raise SourceLost(f"{self.at}: {error}") from None

    async def _take(self, found: Fetched) -> None:
        if found.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await self._earliest(self.leader)
            if self.fetch_offset >= start:
                self.checked = -1
                raise NotLeader  # beyond the end: leader epochs will say why
            self.fetch_offset = start
            return
        self._expect(found.error)
        self.told_ms = self._now_ms()
        self.source_end = found.high_watermark
        self.source_start = max(self.source_start, found.log_start_offset)
        batches = fresh(batches_of(found.records), self.position)
        if not batches and self.fetch_offset > self.position and found.high_watermark == self.fetch_offset:
            empty = gap_batch(self.position, found.high_watermark, self.told_ms)
            batches = [Batch(memoryview(empty))]
        if batches:
            await self._append(batches)
        if self.position >= found.high_watermark:
            self.level_ms = self.told_ms

    async def _append(self, batches: list[Batch]) -> None:
        largest = max(batch.size for batch in batches)
        if largest > BATCH_BYTES_MAX:
            raise Stop(
                f"at offset {self.position}, expected batches of at most {BATCH_BYTES_MAX} bytes, found {largest}"
            )
        records = relabelled(batches, self._between.mask)
        try:
            end = await self._import(self.position, records)
        except TidelogError as error:
            self.forget(str(error))
            return
        self.position = self.fetch_offset = end
        self.epoch = batches[-1].leader_epoch if batches[-1].leader_epoch >= 0 else self.epoch
        self.imported += len(records)
        self.trouble = ""

    async def _import(self, end: int, records: bytes) -> int:
        between = self._between
        try:
            return await import_records(
                between.admin.cluster, self.at, self.topic_id, end, records, patience_s=IMPORT_S, link=between.link
            )
        except TidelogError as error:
            if error.code is ErrorCode.INVALID_REQUEST:
                raise Stop(f"the target accepts no more records from the link: {error}") from None
            raise
