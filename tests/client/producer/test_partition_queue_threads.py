"""The sending thread reads a queue while the user's thread fills it."""

from __future__ import annotations

from typing import Any

from tidelog.client.producer.partition_queue import PartitionQueue


def test_the_size_of_a_queue_may_be_asked_while_it_changes() -> None:
    """An earlier version iterated over the deque itself: "deque mutated during iteration" ended the producer."""
    queue: Any = PartitionQueue("t", 0, in_flight_max=5)

    class Batch:
        """Stands for the other thread: each look at it changes the queue."""

        @property
        def memory(self) -> int:
            queue.pending.append(last)
            return 10

    last = Batch()
    queue.pending.extend([Batch(), Batch()])
    assert queue.pending_bytes == 20
