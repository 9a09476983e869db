"""A client that must remain undisturbed: produces and consumes numbered records while others misbehave.

librdkafka does both (an idempotent producer, and a consumer of the same partition), so that the judge of the port comes
from another author.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

PERIOD_S: Final = 0.01
FAULTS_MAX: Final = 20
END_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Testimony:
    """A witness's observations. ``faults``: the first lost, duplicated, reordered, changed or refused records."""

    sent: int = 0
    acknowledged: int = 0
    read: int = 0
    slowest_ms: float = 0.0
    """Longest time from a send to its acknowledgement."""
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)


class Witness:
    """Observes: ``with Witness(bootstrap, topic) as witness: …``; afterwards ``witness.testimony``. The topic must
    exist."""

    def __init__(self, bootstrap: str, topic: str, period_s: float = PERIOD_S) -> None:
        self.testimony = Testimony()
        self._bootstrap = bootstrap
        self._topic = topic
        self._period_s = period_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name="witness", daemon=True)
            for run in (self._produce, self._consume)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        seen = self.testimony
        if not seen.sent == seen.acknowledged == seen.read:
            seen.fault(f"{seen.sent} sent, {seen.acknowledged} acknowledged, {seen.read} read")

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as trouble:
            self.testimony.fault(f"{type(trouble).__name__}: {trouble}")

    def _produce(self) -> None:
        from confluent_kafka import Producer

        seen = self.testimony
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "client.id": "witness",
                "log_level": 0,
            }
        )

        def taken(error: KafkaError | None, message: Any) -> None:
            seen.slowest_ms = max(seen.slowest_ms, message.latency() * 1000)
            if error is not None:
                seen.fault(f"a record was refused: {error}")
                return
            seen.acknowledged += 1

        while not self._stop.wait(self._period_s):
            producer.produce(self._topic, record(seen.sent), partition=0, on_delivery=taken)
            seen.sent += 1
            producer.poll(0)
        left = producer.flush(END_TIMEOUT_S)
        if left:
            seen.fault(f"{left} records were not acknowledged within {END_TIMEOUT_S:g} s")

    def _consume(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        seen = self.testimony
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "witness", "enable.auto.commit": False,
             "client.id": "witness", "auto.offset.reset": "error", "log_level": 0}
        )  # fmt: skip
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        deadline = None
        try:
            while True:
                if self._stop.is_set():
                    deadline = deadline or time.monotonic() + END_TIMEOUT_S
                    self._threads[0].join(0)
                    if not self._threads[0].is_alive() and seen.read >= seen.acknowledged:
                        return
                    if time.monotonic() > deadline:
                        return
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    if not error.retriable():
                        seen.fault(f"reading: {error}")
                    continue
                if message.value() != record(seen.read):
                    seen.fault(f"expected record {seen.read} at offset {message.offset()}, found {message.value()!r}")
                seen.read += 1
        finally:
            consumer.close()


def record(number: int) -> bytes:
    """Return the value of the ``number``-th record; its length varies with the number."""
    text = b"%d:%08x" % (number, zlib.crc32(b"%d" % number))
    return text + b"." * (number % 301)
