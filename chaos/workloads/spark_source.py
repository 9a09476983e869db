"""The real source under the model of Spark: its planning unchanged, its ranges read by the asyncio consumer.

Planning is written for Spark, which lets it wait for the cluster in its own process; here nobody may wait. So a
planning call is tried. If it asks the cluster a question without an answer yet, the question is asked, and the call is
repeated from its beginning with the answers so far, until it completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tidelog.client.admin.blocking import Admin
from tidelog.client.consumer.range_consumer import RangeConsumer
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.spark_connector.cluster_offsets import ClusterOffsets
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.reading import RangePartition
from tidelog.spark_connector.source import StreamReader

if TYPE_CHECKING:
    from tidelog.aio import Admin as AsyncAdmin
    from tidelog.aio import Consumer

T = TypeVar("T")

FOUND_S: Final = 0.3
"""How long a task waits for data before it checks its progress again."""


class _NotToldYet(BaseException):
    """An answer is missing; the call will be repeated. Not an error for the code that it passes through."""

    def __init__(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        super().__init__(method)
        self.method, self.arguments, self.named = method, arguments, named


class _Told:
    """Replaces the blocking admin client: returns the known answers, in the order of the questions."""

    def __init__(self) -> None:
        self.answers: list[tuple[Any, Exception | None]] = []
        self.next = 0

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            if self.next == len(self.answers):
                raise _NotToldYet(method, arguments, named)
            answer, error = self.answers[self.next]
            self.next += 1
            if error is not None:
                raise error
            return answer

        return ask


class Planner:
    """Spark's stream reader in a driver's process."""

    def __init__(self, options: SourceOptions, admin: AsyncAdmin, now_ms: Callable[[], float]) -> None:
        self._told = _Told()
        self._admin = admin
        cluster = ClusterOffsets(options, sleep=self._told.sleep)
        cluster._admin = cast(Admin, self._told)
        self.reader: Final = StreamReader(options, now_ms)
        self.reader._cluster = cluster

    async def call(self, work: Callable[[StreamReader], T]) -> T:
        """Make one call of the reader. Raises its errors."""
        told, state = self._told, dict(vars(self.reader))
        told.answers.clear()
        while True:
            told.next = 0
            try:
                return work(self.reader)
            except _NotToldYet as asked:
                vars(self.reader).update(state)
                told.answers.append(await self._answer(asked))

    async def _answer(self, asked: _NotToldYet) -> tuple[Any, Exception | None]:
        ask = asyncio.sleep if asked.method == "sleep" else getattr(self._admin, asked.method)
        try:
            return await ask(*asked.arguments, **asked.named), None
        except Exception as error:
            return None, error


async def read_range(consumer: Consumer, one: RangePartition) -> list[tuple[int, bytes]]:
    """Return offset and value of each record of a range, as :class:`RangeConsumer` does, but without blocking a
    thread."""
    at = TopicPartition(one.topic, one.partition)
    steps = cast(RangeConsumer, consumer)  # the common part of both consumers
    found: list[tuple[int, bytes]] = []
    consumer.assign([at])
    RangeConsumer._ask_from(steps, at, one.leader_epoch)
    consumer.seek(at, one.start)
    topic_id = TopicId(bytes.fromhex(one.topic_id))
    while True:
        batches = await consumer.poll_batches(FOUND_S)
        RangeConsumer._check_topic(steps, at, topic_id)
        for batch in batches:
            found += [(record.offset, record.value or b"") for record in batch.records() if record.offset < one.end]
        if RangeConsumer._reached(steps, at) >= one.end:
            return found
