"""Reads a partition from one offset to another, as batch engines do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import ConfigError, RequestTimedOutError, exception_for
from tidelog.client.record import ConsumerBatch
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition

RANGE_SETTINGS: Final[dict[str, Any]] = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "group_id": None,
}
_WAIT_S_MAX: Final = 1.0
"""How long to wait for news before the deadline is checked again."""


class RangeConsumer(Consumer):
    """Reads ranges of committed offsets, one partition at a time, without a group.

        with RangeConsumer("localhost:9092") as consumer:
            for batch in consumer.batches(TopicPartition("orders", 0), 10, 20):
                ...

    Settings are a consumer's, except those in :data:`RANGE_SETTINGS`. One range is read at a time.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        for name in settings:
            if name.replace(".", "_") in RANGE_SETTINGS:
                raise ConfigError(f"{name}: expected no value: a RangeConsumer sets this itself")
        super().__init__(bootstrap_servers, **RANGE_SETTINGS, **settings)

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

        ``end`` must not lie beyond a last stable offset from before the call: everything below that is decided for
        ever, so the same range gives the same records again, except those removed by compaction and retention. The
        first and the last batch may hold records outside the range. With a ``topic_id``, records of another topic with
        the same name are refused. With a ``leader_epoch``, leaders of older epochs are not asked: a replaced leader
        that does not know it yet may lack records that were read, or promised, since.

        Raises ``OffsetOutOfRangeError`` if the log begins after ``start`` or ends before ``end``,
        ``LogTruncationError``, ``InconsistentTopicIdError`` for another ``topic_id``, ``UnknownTopicOrPartitionError``,
        ``CorruptRecordError`` and, if nothing comes for ``idle_timeout`` seconds, ``RequestTimedOutError``.
        """
        if start >= end:
            return
        self.assign([partition])
        try:
            self._ask_from(partition, leader_epoch)
            self.seek(partition, start)  # from here on, requests are sent to the leader
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
                self._data.wait(min(left, _WAIT_S_MAX))
                self._background.check()
        finally:
            if not self._core.closing:
                self.assign([])

    def _ask_from(self, partition: TopicPartition, leader_epoch: int) -> None:
        with self._core.lock:
            self._core.assignment.state(partition).leader_epoch_min = leader_epoch

    def _reached(self, partition: TopicPartition) -> int:
        """Return the offset before which every visible record was returned."""
        with self._core.lock:
            state = self._core.assignment.state(partition)
            return state.position if state.has_data else max(state.position, state.empty_until)

    def _check_topic(self, partition: TopicPartition, topic_id: TopicId | None) -> None:
        """Check that everything fetched so far came from the topic with the currently known id, or from an earlier
        one."""
        if topic_id is None:
            return
        found = self._core.cluster.cache.topic_id(partition.topic)
        if found is not None and found != topic_id:
            raise exception_for(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{partition}: expected topic id {topic_id.hex()}, found {found.hex()}: "
                "the topic was deleted and created again",
            )
