"""The readers of the sink: one from the start of a case on, one at the end. Both see committed records only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from tidelog.chaos.spark_kills.judge import Reading
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Consumer

SETTLED_TIMEOUT_S: Final = 20.0
"""Bound until nothing is undecided in the sink any more, and until it is read to its end."""
_POLL_S: Final = 0.05


class Watcher:
    """Reads a topic from its start, in a thread, until it is asked to finish."""

    def __init__(self, bootstrap: str, partitions: list[TopicPartition]) -> None:
        self.readings: list[Reading] = []
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._ends: dict[TopicPartition, int] | None = None
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="watcher of the sink", daemon=True)
        self._thread.start()

    def finish(self, ends: dict[TopicPartition, int]) -> list[Reading]:
        """Read to these ends and stop; return everything read. Raises :class:`WatchFailed` if it does not get that
        far."""
        self._ends = ends
        self._thread.join(SETTLED_TIMEOUT_S)
        if self._thread.is_alive():
            self.close()
            raise WatchFailed(f"the reader of the sink did not come to its end within {SETTLED_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise WatchFailed(f"the reader of the sink failed: {self._failure}") from self._failure
        return self.readings

    def close(self) -> None:
        """Stop immediately."""
        self._closing.set()
        self._thread.join(SETTLED_TIMEOUT_S)

    def _read(self) -> None:
        try:
            with _consumer(self._bootstrap, self._partitions) as consumer:
                while not self._closing.is_set():
                    ends = self._ends
                    if ends is not None and all(consumer.position(at) >= end for at, end in ends.items()):
                        return
                    self.readings += _poll(consumer)
        except BaseException as failure:
            self._failure = failure


def settled_ends(bootstrap: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Wait until nothing in these partitions is undecided; return their ends. Raises :class:`WatchFailed`."""
    from tidelog import Consumer

    with _consumer(bootstrap, partitions) as committed, Consumer(bootstrap) as every:

        def settled() -> bool:
            return committed.end_offsets(partitions) == every.end_offsets(partitions)

        wait_until("nothing undecided in the sink", settled, SETTLED_TIMEOUT_S)
        return dict(committed.end_offsets(partitions))


def read_all(bootstrap: str, ends: dict[TopicPartition, int]) -> list[Reading]:
    """Return everything that is committed before these ends. Raises :class:`WatchFailed`."""
    found: list[Reading] = []
    deadline = time.monotonic() + SETTLED_TIMEOUT_S
    with _consumer(bootstrap, list(ends)) as consumer:
        while any(consumer.position(at) < end for at, end in ends.items()):
            if time.monotonic() > deadline:
                raise WatchFailed(f"could not read the sink to its end within {SETTLED_TIMEOUT_S:g} s")
            found += _poll(consumer)
    return found


def _consumer(bootstrap: str, partitions: list[TopicPartition]) -> Consumer:
    from tidelog import Consumer

    consumer = Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest")
    consumer.assign(partitions)
    return consumer


def _poll(consumer: Consumer) -> list[Reading]:
    records = consumer.poll(_POLL_S)
    now = time.monotonic()
    return [Reading(one.partition, one.offset, one.value or b"", now) for one in records]
