"""Which record a free worker gets, and what that means for commits. Pure: time comes in, and nothing here waits.

Records of one *lane* are worked on one after the other, in order; lanes go on side by side. ``ordered_by`` says what
makes a lane:

=============  ==========================================================
``key``        the records of one key (records without one: each its own)
``partition``  the records of one partition
``none``       each record its own
=============  ==========================================================

A lane holds no worker while it has nothing to do, so a slow key holds back itself alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.progress import METADATA_MAX, Progress, says
from tidelog.client.workers.seen_ids import Deduplicate, SeenIds
from tidelog.model.ids import TopicPartition

OrderedBy = Literal["key", "partition", "none"]

SPAN_MAX: Final = 10_000
"""Records of one partition from its lowest unfinished one on. At this many, the partition waits: everything above a
record that never finishes would have to be remembered, and repeated after a crash."""
_METADATA_FULL: Final = METADATA_MAX * 3 // 4


class Work(NamedTuple):
    """One record that a worker has or is about to get. ``failures``: how often its handler raised."""

    record: ConsumerRecord
    lane: Hashable
    tenure: int
    """Which ownership of its partition it belongs to."""
    failures: int = 0
    first_failed_ms: int = 0


class _Held:
    """A partition that this member owns."""

    __slots__ = ("from_offset", "in_hand", "lanes", "progress", "seen", "stopped", "tenure")

    def __init__(self, tenure: int, progress: Progress, seen: SeenIds | None, from_offset: int) -> None:
        self.tenure = tenure
        self.progress = progress
        self.seen = seen
        self.from_offset = from_offset
        """Records before it are read only for their ids."""
        self.lanes: dict[Hashable, deque[Work]] = {}
        self.in_hand: set[Hashable] = set()
        """The lanes whose first record a worker has."""
        self.stopped = False


class Board:
    """The records between the consumer and the workers; at most ``in_flight_max`` unfinished ones."""

    def __init__(self, ordered_by: OrderedBy, in_flight_max: int, deduplicate: Deduplicate | None = None) -> None:
        self._ordered_by = ordered_by
        self._in_flight_max = in_flight_max
        self._deduplicate = deduplicate
        self._held: dict[TopicPartition, _Held] = {}
        self._ready: deque[tuple[TopicPartition, int, Hashable]] = deque()
        self._later: list[tuple[int, int, TopicPartition, int, Hashable]] = []
        self._tenures = 0
        self._turn = 0
        self._closed = False
        self._full = False
        self.unfinished = 0
        """Records that were admitted and are neither finished nor given up with their partition."""
        self.duplicates = 0
        self.skipped = 0
        """Records that a former owner of their partition had finished."""

    # --- partitions -----------------------------------------------------------------------------------

    def own(self, at: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """Note that this member owns the partition now, and reads on from the group's commit."""
        self.disown(at)
        self._tenures += 1
        given = OffsetAndMetadata(0) if committed is None else committed
        progress = Progress(None if committed is None else given.offset, given.metadata)
        seen = None if self._deduplicate is None else SeenIds(self._deduplicate.window)
        self._held[at] = _Held(self._tenures, progress, seen, given.offset)

    def stop(self, at: TopicPartition) -> None:
        """Stop handing out records of this partition; those in progress may finish."""
        held = self._held.get(at)
        if held is not None and not held.stopped:
            held.stopped = True
            self.unfinished -= sum(map(len, held.lanes.values())) - len(held.in_hand)
            held.lanes = {lane: deque([held.lanes[lane][0]]) for lane in held.in_hand}

    def disown(self, at: TopicPartition) -> None:
        """Note that the partition belongs to another member: work in progress here no longer counts."""
        held = self._held.pop(at, None)
        if held is not None:
            self.unfinished -= sum(map(len, held.lanes.values()))

    def close(self) -> None:
        """Stop handing out records."""
        self._closed = True

    def in_work(self, partitions: Iterable[TopicPartition]) -> int:
        """Return how many of these partitions' records workers have."""
        return sum(len(self._held[at].in_hand) for at in partitions if at in self._held)

    # --- records --------------------------------------------------------------------------------------

    def admit(self, records: Iterable[ConsumerRecord]) -> None:
        """Admit records that the consumer returned, in order."""
        for record in records:
            at = record.topic_partition
            held = self._held.get(at)
            if held is None or held.stopped:
                continue
            duplicate = False
            if held.seen is not None and self._deduplicate is not None:
                message_id = self._deduplicate.id_of(record.headers)
                duplicate = message_id is not None and held.seen.seen(record.offset, message_id)
            if record.offset < held.from_offset:
                continue
            if not held.progress.admit(record.offset, record.leader_epoch):
                self.skipped += 1
            elif duplicate:
                self.duplicates += 1
                held.progress.finish(record.offset)
            else:
                self._queue(at, held, record)

    def passed(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note the consumer's positions, after it has returned everything admitted so far. Of stopped partitions,
        nothing more is admitted."""
        for at, position in positions.items():
            held = self._held.get(at)
            if held is not None and not held.stopped:
                held.progress.passed(position.offset, position.leader_epoch)

    def _queue(self, at: TopicPartition, held: _Held, record: ConsumerRecord) -> None:
        lane: Hashable = record.offset
        if self._ordered_by == "partition":
            lane = -1
        elif self._ordered_by == "key" and record.key is not None:
            lane = record.key
        works = held.lanes.setdefault(lane, deque())
        works.append(Work(record, lane, held.tenure))
        self.unfinished += 1
        if len(works) == 1:
            self._ready.append((at, held.tenure, lane))

    def take(self, now_ms: int) -> Work | None:
        """Return the next record for a free worker; ``None`` if there is none now."""
        while self._later and self._later[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._later)[2:])
        while self._ready and not self._closed:
            at, tenure, lane = self._ready.popleft()
            held = self._held.get(at)
            if held is None or held.tenure != tenure or held.stopped:
                continue
            held.in_hand.add(lane)
            return held.lanes[lane][0]
        return None

    def finish(self, work: Work) -> None:
        """Note that the record needs no more work."""
        held = self._of(work)
        if held is None:
            return
        held.in_hand.discard(work.lane)
        held.progress.finish(work.record.offset)
        self.unfinished -= 1
        works = held.lanes[work.lane]
        works.popleft()
        if not works:
            del held.lanes[work.lane]
        elif not held.stopped:
            self._ready.append((work.record.topic_partition, work.tenure, work.lane))

    def again(self, work: Work, due_ms: int, now_ms: int) -> None:
        """Note that its handler raised: hand it out again at ``due_ms``. Its lane waits for it."""
        held = self._of(work)
        if held is None:
            return
        held.in_hand.discard(work.lane)
        works = held.lanes[work.lane]
        works[0] = work._replace(failures=work.failures + 1, first_failed_ms=work.first_failed_ms or now_ms)
        self._turn += 1
        heapq.heappush(self._later, (due_ms, self._turn, work.record.topic_partition, work.tenure, work.lane))

    def let_go(self, work: Work) -> None:
        """Note that no worker has it any more, and it is unfinished: the partition's next owner gets it."""
        held = self._of(work)
        if held is not None:
            held.in_hand.discard(work.lane)

    def _of(self, work: Work) -> _Held | None:
        held = self._held.get(work.record.topic_partition)
        return held if held is not None and held.tenure == work.tenure else None

    def is_current(self, work: Work) -> bool:
        """Return whether this member still owns the record's partition, without a break."""
        return self._of(work) is not None

    # --- for the consumer -----------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more records may come in. Once there is no room, there is none until half of it is free."""
        self._full = self.unfinished >= self._in_flight_max or (
            self._full and self.unfinished > self._in_flight_max // 2
        )
        return 0 if self._full else self._in_flight_max - self.unfinished

    def held_back(self) -> set[TopicPartition]:
        """Return the partitions from which nothing more may come in for now."""
        if not self.room():
            return set(self._held)
        return {at for at, held in self._held.items() if self._is_full(held)}

    def _is_full(self, held: _Held) -> bool:
        if held.stopped or len(held.progress) >= SPAN_MAX:
            return True
        if len(held.progress) - held.progress.unfinished < _METADATA_FULL // 4:
            return False  # too few to fill the metadata
        news = held.progress.news()
        return news is not None and len(news.metadata) >= _METADATA_FULL

    def due_ms(self) -> int | None:
        """Return when the next retry is due."""
        return self._later[0][0] if self._later else None

    def news(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what to commit for all partitions."""
        found = ((at, held.progress.news()) for at, held in self._held.items())
        return {at: news for at, news in found if news is not None}

    def given_up(self, works: Iterable[Work]) -> tuple[list[Work], dict[TopicPartition, OffsetAndMetadata]]:
        """Return what to commit together with these records' dead letters: the commit says that they are finished. Also
        returns the records that it can cover; the metadata has no room for the others until lower ones are finished."""
        mine = [work for work in works if self.is_current(work)]
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for at in {work.record.topic_partition for work in mine}:
            there = [work.record.offset for work in mine if work.record.topic_partition == at]
            if (news := self._held[at].progress.news(there)) is not None:
                offsets[at] = news
        told = [w for w in mine if (at := w.record.topic_partition) in offsets and says(offsets[at], w.record.offset)]
        return told, offsets

    def committed(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that the group has these offsets now."""
        for at, what in offsets.items():
            if at in self._held:
                self._held[at].progress.committed(what)
