"""A drill's clients, and the watcher of the cluster: they record events, and decide nothing.

One idempotent producer (acks=all) sends numbered records round-robin to the partitions of the drill's topic at a steady
rate; one reader reads them as they arrive; one admin client changes a setting of the topic, again and again; and every
node is polled for the state of the cluster. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.aio import Admin, Consumer, Producer
from tidelog.chaos.drill.evidence import Acknowledged, Committed, Evidence, Seen
from tidelog.chaos.laboratory.faults.observer import ClusterStanding, Observer
from tidelog.client.admin.types import NewTopic
from tidelog.client.config.security import SecuritySettings
from tidelog.client.delivery import RecordMetadata
from tidelog.client.errors import TidelogError
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.transport.network import Address

WATCH_S: Final = 0.05
"""Pause between two polls of the cluster's state: the precision of observations, if nodes answer."""
CHANGE_S: Final = 0.05
"""Pause between an answered change of metadata and the next one."""
CHANGE_BOUND_S: Final = 600.0
"""How long a change of metadata may wait for a controller before it counts as an error."""
POLL_S: Final = 0.2
PACE_S: Final = 0.005
RETENTION_MS: Final = 86_400_000
FLUSH_S: Final = 60.0
CLOSE_S: Final = 5.0
QUICK: Final[Mapping[str, Any]] = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 100, "reconnect_backoff_ms": 20}
"""Settings of the admin client, which only measures; producer and reader use an application's default settings."""


@dataclass(frozen=True, slots=True)
class Load:
    """``per_s`` records a second of ``value_bytes`` each, at most ``records_max`` in all; one producer."""

    per_s: float = 200.0
    value_bytes: int = 200
    records_max: int = 500_000


class Traffic:
    """The clients of one drill. Everything but the constructor runs on one event loop."""

    def __init__(
        self, bootstrap: str, brokers: Mapping[int, Address], topic: NewTopic, load: Load, security: SecuritySettings
    ) -> None:
        self.evidence = Evidence()
        self._bootstrap = bootstrap
        self._brokers = brokers
        self._topic = topic
        self._load = load
        self._security = security
        self._began = time.monotonic()
        self._sending = True
        self._tasks: list[asyncio.Task[None]] = []
        self._made = False
        self.last_look: tuple[float, ClusterStanding] = (0.0, ClusterStanding())
        """When the cluster's state was last polled, and the answer."""

    @property
    def topic(self) -> str:
        return self._topic.name

    def now(self) -> float:
        """Return the seconds since the start of the drill; from any thread."""
        return time.monotonic() - self._began

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic.name, number) for number in range(self._topic.num_partitions)]

    async def begin(self) -> None:
        """Create the topic and start the clients. Raises what the SDK raises."""
        self._observer = Observer(self._brokers, self._security)
        self._admin = Admin(self._bootstrap, **self._security, **QUICK)
        await self._admin.start()
        await self._admin.create_topics([self._topic])
        self._made = True
        self._producer = Producer(self._bootstrap, acks="all", enable_idempotence=True, linger_ms=0, **self._security)
        self._reader = Consumer(self._bootstrap, auto_offset_reset="earliest", **self._security)
        await self._producer.start()
        await self._reader.start()
        self._reader.assign(self.partitions)
        loop = asyncio.get_running_loop()
        self._sender = loop.create_task(self._send())
        self._tasks = [loop.create_task(work) for work in (self._read(), self._change(), self._watch())]

    async def stop_sending(self) -> int:
        """Stop sending, and wait for every outcome; return how many records have none after :data:`FLUSH_S`."""
        self._sending = False
        await asyncio.wait([self._sender], timeout=FLUSH_S)
        try:
            await self._producer.flush(FLUSH_S)
        except TidelogError as error:
            self.evidence.trouble(self.now(), "producer", error)
        return self.evidence.sent - len(self.evidence.places)

    async def end(self, *, delete: bool) -> None:
        """End every client, at any time; ``delete`` the topic if it was created. Raises what the SDK raises for
        that."""
        self._sending = False
        tasks = [*self._tasks, *([self._sender] if hasattr(self, "_sender") else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        if hasattr(self, "_producer"):
            await self._producer.close(0.0)
        if hasattr(self, "_reader"):
            await self._reader.close()
        if hasattr(self, "_observer"):
            await self._observer.close()
        if hasattr(self, "_admin"):
            try:
                if delete and self._made:
                    await self._admin.delete_topics([self._topic.name], timeout=CLOSE_S)
            finally:
                await self._admin.close()

    # --- Activities ----------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        load, evidence = self._load, self.evidence
        began = self.now()
        padding = b"x" * load.value_bytes
        while self._sending and evidence.sent < load.records_max:
            due = min(int((self.now() - began) * load.per_s) + 1, load.records_max)
            while evidence.sent < due and self._sending:
                number, at = evidence.sent, self.now()
                partition = number % self._topic.num_partitions
                evidence.sent += 1
                try:
                    await self._producer.send(
                        self._topic.name,
                        (b"%d:" % number + padding)[: max(load.value_bytes, 12)],
                        partition=partition,
                        on_delivery=self._heard(number, at),
                    )
                except TidelogError as error:
                    evidence.trouble(self.now(), "producer", error)
            await asyncio.sleep(PACE_S)

    def _heard(self, number: int, began_s: float) -> Callable[[RecordMetadata | None, BaseException | None], None]:
        def heard(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if error is not None or metadata is None:
                self.evidence.trouble(self.now(), "producer", error or RuntimeError("an answer without a place"))
                return
            self.evidence.places[number] = (metadata.partition, metadata.offset)
            self.evidence.acknowledgements.append(Acknowledged(began_s, self.now(), metadata.partition))

        return heard

    async def _read(self) -> None:
        while True:
            try:
                batches = await self._reader.poll_batches(POLL_S)
            except TidelogError as error:
                self.evidence.trouble(self.now(), "reader", error)
                await asyncio.sleep(POLL_S)
                continue
            at = self.now()
            self.evidence.handed += [(at, batch.partition, len(batch)) for batch in batches]

    async def _change(self) -> None:
        """Toggle a setting of the topic."""
        resource, number = ConfigResource("topic", self._topic.name), 0
        while True:
            number, began = number + 1, self.now()
            change = {resource: {"retention.ms": str(RETENTION_MS + number)}}
            try:
                await self._admin.alter_configs(change, timeout=CHANGE_BOUND_S)
            except TidelogError as error:
                self.evidence.trouble(self.now(), "admin", error)
            else:
                self.evidence.commits.append(Committed(began, self.now()))
            await asyncio.sleep(CHANGE_S)

    async def _watch(self) -> None:
        """Record the state of the cluster whenever it changes."""
        while True:
            asked_s = self.now()
            found = await self._observer.standing((self._topic.name,))
            self.last_look = (asked_s, found)
            last = self.evidence.standing
            if (found.controller, found.partitions, found.fenced) != (last.controller, last.partitions, last.fenced):
                self.evidence.seen.append(Seen(self.now(), found))
            await asyncio.sleep(WATCH_S)
