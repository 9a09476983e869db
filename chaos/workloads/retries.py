"""Tasks whose handlers raise as the tasks say, and members of a group that work on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from tidelog.aio import RetryPolicy, Workers
from tidelog.chaos.checkers.history import NO_OFFSET, Outcome
from tidelog.chaos.checkers.patterns.retries import Call, End, Place, Task, TaskSend
from tidelog.chaos.workloads.appending import Appender
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.transactions import producer_settings
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import TidelogError
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.message_headers import RETRY_OWN

ATTEMPTS: Final = 3
TRANSACTION_MS: Final = 3_000
_FAILURES: Final = (0, 0, 0, 1, 2, ATTEMPTS)
_ENDS: Final[Sequence[End]] = ("done", "done", "done", "done", "rejected", "invalid")
_HEADERS: Final = ((), (("own", b"1"), ("own", b"2")), (("own", None), ("other", b"")))


class Rejected(Exception):
    """No retry fixes this."""


def written(task: Task) -> bytes:
    return b"%s:%d:%s" % (task.mark, task.failures, task.end.encode())


def parsed(value: bytes) -> Task:
    mark, failures, end = value.rsplit(b":", 2)
    [known] = (each for each in get_args(End) if each == end.decode())
    return Task(mark, int(failures), known)


def readable(topic: str, value: bytes | None) -> bytes | None:
    """The deserializer of a group of :class:`Worker`. Raises ``ValueError``."""
    if parsed(value or b"").end == "invalid":
        raise ValueError("not to be read")
    return value


class TaskWriter(Appender):
    """Writes tasks."""

    def __init__(
        self, name: str, world: World, partitions: Sequence[TopicPartition], told: Callable[[TaskSend], None]
    ) -> None:
        self._told = told
        super().__init__(name, world, partitions, {"max_block_ms": 20_000}, pause_s=(0.3, 1.5), bursts=(1, 2, 6))

    def _record(self, number: int) -> dict[str, Any]:
        rng = self._rng
        end = rng.choice(_ENDS)
        task = Task(b"%s:%d" % (self.name.encode(), number), 0 if end == "invalid" else rng.choice(_FAILURES), end)
        key = rng.choice((None, b"", b"k0", b"k1", b"k2"))
        return {"value": written(task), "key": key, "headers": rng.choice(_HEADERS)}

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        _, record, _ = self._under_way.pop(number)
        self._told(TaskSend(parsed(record["value"]), outcome, record["key"], record["headers"]))


class Worker(Incarnation):
    """A member of the group: the SDK's own loop, which copies what failed to the delay topic ``through``."""

    def __init__(
        self,
        name: str,
        world: World,
        *,
        topics: tuple[str, str, str],
        through: str,
        group: str,
        settings: dict[str, Any],
        told: Callable[[Call], None],
    ) -> None:
        """``topics``: of the tasks, of the copies that come again, of the dead letters; ``settings``: of consumers."""
        super().__init__(name, world)
        rng, self._told = self._rng, told
        tasks, back, letters = topics
        workers = rng.choice((1, 4))
        self._workers = Workers(
            self._handle,
            world.bootstrap,
            topics=tasks,
            group_id=group,
            workers=workers,
            ordered_by=rng.choice(("key", "partition", "none")),
            retry=RetryPolicy(
                attempts=ATTEMPTS,
                backoff_ms=100 * world.scale,
                backoff_max_ms=1_000 * world.scale,
                fatal=(Rejected,),
                through=through,
                back=back,
            ),
            dead_letters=letters,
            in_flight_max=rng.choice((workers, 50)),
            drain_timeout=2.0 * world.scale,
            consumer_settings={**settings, "value_deserializer": readable, "max_poll_records": rng.choice((2, 50))},
            producer_settings={
                **producer_settings(rng, world.scale),
                "transaction_timeout_ms": TRANSACTION_MS * world.scale,
            },
            **self.process.seams(),
        )

    async def _run(self) -> None:
        await self._workers.run()

    async def _handle(self, record: ConsumerRecord) -> None:
        task, failed = parsed(record.value or b""), int(dict(record.headers).get(f"{RETRY_OWN}attempt") or 0)
        if self._rng.random() < 0.2:
            await asyncio.sleep(self._rng.choice((0.02, 0.3, 1.5)))
        returned = failed >= task.failures and task.end == "done"
        self._told(Call(task.mark, Place(*record.topic_partition, record.offset), returned))
        if failed < task.failures:
            raise OSError(f"failure {failed + 1} of {task.mark.decode()}")
        if not returned:
            raise Rejected(f"{task.mark.decode()} is of no use")

    def _ended_by(self, error: TidelogError) -> None:
        """What it has written is judged, not the answers that it got."""

    def stop(self) -> None:
        super().stop()
        self._workers.stop()
