"""Reading a partition from one offset to another, and no further: what batch engines do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelog.client.blocking_consumer import Consumer
from tidelog.client.errors import ConfigError, RequestTimedOutError, exception_for
from tidelog.client.record import ConsumerBatch
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition

_FIXED: Final[dict[str, Any]] = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "group_id": None,
}
_WAIT_S_MAX: Final = 1.0
"""How long news is waited for before the deadline is looked at again."""


class RangeConsumer(Consumer):
    """Reads ranges of committed offsets, one partition at a time, without a group.

        with RangeConsumer("localhost:9092") as consumer:
            for batch in consumer.batches(TopicPartition("orders", 0), 10, 20):
                ...

    Settings as of a consumer, but for those that :data:`_FIXED` has. One range is read at a time.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        for name in settings:
            if name.replace(".", "_") in _FIXED:
                raise ConfigError(f"{name}: expected not to be set, a reader of ranges decides this itself")
        super().__init__(bootstrap_servers, **_FIXED, **settings)

    def batches(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        topic_id: TopicId | None = None,
        leader_epoch: int = -1,
        idle_timeout: float = 120.0,
    ) -> Iterator[ConsumerBatch]:
        """Yield the batches that hold records from offset ``start`` to before ``end``, in order.

        ``end`` must not lie beyond the last stable offset as it was at some time before the call: what lies below
        is decided for ever, so the same range read again gives the same records but for those that compaction and
        retention removed. The first and the last batch may hold records outside the range. With a ``topic_id``,
        nothing is taken from another topic of the same name; with a ``leader_epoch`` nobody is asked who led before
        that: a leader that was replaced and has not heard of it may not have what was read, or promised, since.

        Raises ``OffsetOutOfRangeError`` where the log begins after ``start`` or ends before ``end`` could be
        reached, ``LogTruncationError``, ``InconsistentTopicIdError`` for another ``topic_id``,
        ``UnknownTopicOrPartitionError``, ``CorruptRecordError`` and, when nothing has come for ``idle_timeout``
        seconds, ``RequestTimedOutError``.
        """
        if start >= end:
            return
        self.assign([partition])
        try:
            self._ask_from(partition, leader_epoch)
            self.seek(partition, start)  # from here on the leader is asked
            deadline = time.monotonic() + idle_timeout
            while True:
                found = self.poll_batches()
                self._check_topic(partition, topic_id)
                for batch in found:
                    if batch.base_offset >= end:
                        return
                    yield batch
                if self._reached(partition) >= end:
                    return
                if found:
                    deadline = time.monotonic() + idle_timeout
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    why = self._core.cluster.failure
                    raise RequestTimedOutError(
                        f"{partition}: nothing came within {idle_timeout} s at offset {self._reached(partition)}, "
                        f"expected to read up to {end}{'' if why is None else f': {why}'}"
                    )
                self._news.wait(min(left, _WAIT_S_MAX))
                self._background.check()
        finally:
            if not self._core.closing:
                self.assign([])

    def _ask_from(self, partition: TopicPartition, leader_epoch: int) -> None:
        with self._core.lock:
            self._core.assignment.state(partition).leader_epoch_min = leader_epoch

    def _reached(self, partition: TopicPartition) -> int:
        """Every record before this offset was handed out, or is none that readers see."""
        with self._core.lock:
            state = self._core.assignment.state(partition)
            return state.position if state.has_data else max(state.position, state.empty_until)

    def _check_topic(self, partition: TopicPartition, topic_id: TopicId | None) -> None:
        """What was fetched so far came from the topic with the id that is known now, or from one before it."""
        if topic_id is None:
            return
        found = self._core.cluster.cache.topic_id(partition.topic)
        if found is not None and found != topic_id:
            raise exception_for(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{partition}: expected topic id {topic_id.hex()}, found {found.hex()}: "
                "the topic was deleted and another one made by its name",
            )
