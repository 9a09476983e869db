"""Random faults on a whole cluster in one process, under producers and consumers, and the judgement after them.

A run is made by its seed: which faults follow one another, when, and what is sent. Real time and real
tasks make two runs of one seed differ in detail; the log in :class:`Report` says what happened.
(:mod:`tidelog.chaos.sim` runs the same cluster in virtual time, where a seed says everything; here threads,
files and sockets are the real ones.)

The shared judges of :mod:`tidelog.chaos.checkers` say what is wrong. While faults happen: who leads and who is
in sync, images of metadata, high watermarks, replicas compared as far as they are committed, each
acknowledged record on two replicas, no log shorter than when its process died. At the end, with everything
mended and every ISR whole again:

- the history of all clients fits what the logs hold: each acknowledged record once, at its offset, in its
  producer's order; nothing that failed; nothing skipped by a consumer or seen twice, nothing seen that is gone;
- replicas are equal byte for byte, and all of it is committed and read by every consumer;
- a record sent after the last fault is acknowledged within a bound, each has an outcome, and nothing waits on a
  broker for ever.

Run it longer by hand: ``python -m tidelog.chaos.random_faults --seeds 1-20 --seconds 15``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidelog.chaos.checkers.history import History, Outcome
from tidelog.chaos.checkers.log_anomalies import violations
from tidelog.chaos.random_fault_actions import SETTLE_S, RandomHand
from tidelog.chaos.random_fault_clients import Reading, Sending, partitions_of
from tidelog.chaos.random_fault_watch import ClusterWatch
from tidelog.client.errors import TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.testing.async_cluster import GRPC, MEMORY, AsyncCluster

log = logging.getLogger(__name__)

TOPICS: Final[Mapping[str, int]] = {"a": 3, "b": 2}
VIOLATIONS_MAX: Final = 100
"""A report holds no more of them, each once."""
WAITS_S: Final = 10.0
"""Bound after which nothing of clients that are gone may be left on brokers."""
_CONFIG: Final[Mapping[str, str]] = {
    "min.insync.replicas": "2",
    "log.segment.bytes": "1048576",
    "replica.lag.time.max.ms": "3000",
    "controlled.shutdown.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "2",
}


@dataclass(slots=True)
class Report:
    """What a run found. ``violations`` is empty where everything held."""

    seed: int
    faults: int = 0
    log: list[str] = field(default_factory=list)
    """What was done to the cluster, when, and how it settled."""
    violations: list[str] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    """Definitely not sent."""
    unknown: int = 0
    """Given up without knowing: they may be in the log or not."""
    read: int = 0
    settled_s: float = 0.0

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.faults} faults, {self.sent} sent, {self.acknowledged} acknowledged, "
            f"{self.failed} failed, {self.unknown} unknown, {self.read} in the log, settled in {self.settled_s:.1f} s: "
            f"{'held' if not self.violations else 'BROKEN'}"
        )
        return "\n".join([head, *(f"  {text}" for text in self.violations)])


Body = Callable[["Run"], Awaitable[None]]
"""What happens to a cluster while its clients work."""


class Run:
    """One run on one cluster."""

    def __init__(self, seed: int, transport: str = MEMORY, *, trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.report = Report(seed)
        self.history = History()
        self.cluster = AsyncCluster(3, transport=transport, config=_CONFIG, log_dirs=2, seed=seed)
        self.watch = ClusterWatch(self.cluster, self.violated)
        self.counts = dict(TOPICS)
        self.hand = RandomHand(self.cluster, self.watch, self.counts, self.rng, self._fault, self.violated)
        self.senders: list[Sending] = []
        self.readers: list[Reading] = []
        self._trace = trace
        self._began = 0.0
        self._loop_errors: list[str] = []
        self._reading: list[asyncio.Future[None]] = []

    async def run(self, body: Body) -> Report:
        """Start everything, let ``body`` happen to it, mend everything and judge. Raises only what is wrong with
        the run itself."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_error)
        async with self.cluster:
            self._began = loop.time()
            watching = asyncio.ensure_future(self.watch.run())
            for topic, count in TOPICS.items():
                await self.cluster.create_topic(topic, count, 3)
            for number in range(3):
                self.senders.append(self._sender(f"p{number}"))
            sending = [asyncio.ensure_future(sender.run()) for sender in self.senders]
            for number in range(2):
                self._read(f"c{number}", partitions_of(TOPICS), auto_offset_reset="none", fetch_max_wait_ms=200)
            try:
                for sender in self.senders:
                    await sender.producer.start()
                for reader in self.readers:
                    await reader.consumer.start()
                await body(self)
                await self._settle(sending)
                await self._judge()
            finally:
                await self._end_clients([watching, *sending])
            await self._nothing_waits()
        gc.collect()
        await asyncio.sleep(0)
        for text in self._loop_errors:
            self.violated(f"the event loop reports: {text}")
        return self.report

    def note(self, text: str) -> None:
        """A line of the report's log."""
        line = f"{asyncio.get_running_loop().time() - self._began:6.2f} {text}"
        self.report.log.append(line)
        if self._trace:
            print(line, flush=True)
        log.warning("fault: %s", text)

    def violated(self, text: str) -> None:
        """Note what must never happen and did."""
        known = self.report.violations
        if len(known) < VIOLATIONS_MAX and text not in known:
            known.append(text)
            if self._trace:
                print("VIOLATION", text, flush=True)

    def _fault(self, text: str) -> None:
        self.report.faults += 1
        self.note(text)

    # --- clients --------------------------------------------------------------------------------------

    def _sender(self, name: str) -> Sending:
        rng = self.rng
        settings: dict[str, Any] = {
            "compression_type": rng.choice(["none", "lz4", "none"]),
            "linger_ms": rng.choice([0, 5]),
            "batch_size": rng.choice([500, 16_384]),
            "request_timeout_ms": 2_000,
            "delivery_timeout_ms": rng.choice([2_500, 60_000]),
            "max_block_ms": 60_000,
        }
        producer = self.cluster.producer(**settings)
        own = random.Random(rng.random())
        return Sending(name, producer, self.counts, self.history, own, self.watch.acknowledged, self.violated)

    def _read(self, name: str, partitions: list[TopicPartition], *, seeks: bool = True, **settings: Any) -> Reading:
        consumer = self.cluster.consumer(**settings)
        own = random.Random(f"{self.report.seed}-{name}")
        reader = Reading(name, consumer, partitions, self.history, own, self.violated, seeks=seeks)
        self.readers.append(reader)
        self._reading.append(asyncio.ensure_future(reader.run()))
        return reader

    async def _end_clients(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        everybody = [*tasks, *self._reading]
        for task in everybody:
            task.cancel()
        for result in await asyncio.gather(*everybody, return_exceptions=True):
            if isinstance(result, Exception):
                self.violated(f"a task of a client or of the watch raised {result!r}")
        for sender in self.senders:
            await sender.producer.close(2.0)
        for reader in self.readers:
            await reader.consumer.close()

    # --- the end --------------------------------------------------------------------------------------

    async def _settle(self, sending: Sequence[asyncio.Future[None]]) -> None:
        began = asyncio.get_running_loop().time()
        self.note("mend everything")
        await self.hand.mend()
        await self._expect(self.cluster.wait_ready(SETTLE_S), "ready")
        before = {sender.name: sender.acknowledged for sender in self.senders}

        def progress() -> bool:
            return all(sender.acknowledged > before[sender.name] for sender in self.senders)

        await self._expect(self.cluster.wait_for(progress, "progress of every producer", SETTLE_S), "progress")
        await self._expect(self.cluster.wait_for(self.watch.isr_whole, "every ISR whole", SETTLE_S), "isr whole")
        for sender in self.senders:
            sender.stop = True
        await asyncio.wait(sending, timeout=SETTLE_S)
        for sender in self.senders:
            await self._expect(sender.producer.flush(SETTLE_S), f"flush of {sender.name}")
            if sender.undecided:
                self.violated(f"{sender.name}: {sender.undecided} records have no outcome after flush")
            sender.leave()
        self.report.settled_s = asyncio.get_running_loop().time() - began

    async def _expect(self, work: Awaitable[Any], what: str) -> None:
        try:
            await work
        except (TimeoutError, TidelogError) as error:
            standing = self.watch.standing() + [line for sender in self.senders for line in sender.standing()]
            self.violated("\n    ".join([f"{what}: {error}", *standing]))
        else:
            self.note(what)

    async def _judge(self) -> None:
        report, history = self.report, self.history
        await self._expect(self.cluster.wait_for(self.watch.replicas_level, "replicas level", SETTLE_S), "level")
        final = self.watch.judge_end()
        ends = {at: records[-1][0] + 1 if records else 0 for at, records in final.items()}
        await self._read_back(ends)
        report.read = sum(map(len, final.values()))
        report.sent = sum(sender.sent for sender in self.senders)
        report.acknowledged = sum(sender.acknowledged for sender in self.senders)
        report.failed = sum(sender.outcomes[Outcome.FAILED] for sender in self.senders)
        report.unknown = sum(sender.outcomes[Outcome.UNKNOWN] for sender in self.senders)
        found = violations(history, final)
        for text in found:
            self.violated(text)
        for at, lines in self.watch.metadata.history.items():
            if any(str(at) in text for text in found):
                self.violated("\n    ".join([f"history of {at}:", *lines]))

    async def _read_back(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let one more consumer read everything, and the others come to the end."""
        last = self._read("last", list(ends), seeks=False, auto_offset_reset="earliest")
        await last.consumer.start()
        try:
            told = await last.consumer.end_offsets(list(ends), timeout=SETTLE_S)
        except TidelogError as error:
            self.violated(f"reading back: {error!r}")
        else:
            if told != ends:
                self.violated(f"reading back: a consumer is told the ends {told}, the logs hold {dict(ends)}")
        for reader in self.readers:
            at_end = partial(reader.is_at, ends)
            await self._expect(self.cluster.wait_for(at_end, f"{reader.name} at the end", SETTLE_S), "consumer")

    async def _nothing_waits(self) -> None:
        """With the clients gone nothing of theirs may be left on a broker."""
        try:
            await self.cluster.wait_for(lambda: not self.watch.waiting(), "nothing left", WAITS_S)
        except TimeoutError:
            for text in self.watch.waiting():
                self.violated(f"left after the clients: {text}")

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context.get('message')}: {error!r} {context.get('task') or context.get('future') or ''}"
        if error is not None:
            log.error("event loop: %s", text, exc_info=error)
        self._loop_errors.append(text)


async def run(seed: int, seconds: float, transport: str = MEMORY, *, trace: bool = False) -> Report:
    """Run one seed with faults for ``seconds``; mending and judging come on top."""
    return await Run(seed, transport, trace=trace).run(lambda it: it.hand.deal(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults on a cluster of three nodes in this process.")
    parser.add_argument("--seeds", default="1-5", help="first-last, or one seed")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--transport", choices=(MEMORY, GRPC), default=MEMORY)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--log", default="", help="level of the log on standard error")
    asked = parser.parse_args()
    if asked.log:
        logging.basicConfig(level=asked.log, format="%(relativeCreated)8d %(levelname)s %(name)s: %(message)s")
    first, _, last = asked.seeds.partition("-")
    broken = 0
    for seed in range(int(first), int(last or first) + 1):
        began = time.monotonic()
        report = asyncio.run(run(seed, asked.seconds, asked.transport, trace=asked.trace))
        print(report, f"({time.monotonic() - began:.1f} s)", flush=True)
        if report.violations:
            broken += 1
            print("\n".join(f"    {line}" for line in report.log), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
