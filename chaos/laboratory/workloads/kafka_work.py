"""The workload of Kafka's own clients: librdkafka appends, runs transactions and reads at the Kafka listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.chaos.laboratory.faults.injector import Targets
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.workloads.world import partitions_of
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.laboratory.workloads.kafka_clients import KafkaClient, KafkaSender

LOG: Final = "k-log"
MANY: Final = "k-many"
PARTITIONS: Final = 3
GROUP: Final = "k-readers"
ASSIGNED_GROUP: Final = "k-assigned"
"""Its coordinator assigns (KIP-848)."""
WRITER: Final = "kw0"
END_S: Final = 15.0


class KafkaWork:
    """Two idempotent producers, a transactional one, readers of all isolation levels, a group of each protocol."""

    topics: Mapping[str, int] = {LOG: PARTITIONS, MANY: PARTITIONS}
    configs: Mapping[str, Mapping[str, str]] = {}
    derived: Mapping[str, str] = {}

    def __init__(self, surroundings: Surroundings) -> None:
        try:
            from tidelog.chaos.laboratory.workloads.kafka_clients import (
                KafkaAppender,
                KafkaReader,
                KafkaWriter,
                librdkafka_settings,
            )
        except ModuleNotFoundError as missing:
            if missing.name != "confluent_kafka":
                raise
            raise CommandFailed(
                "the workload kafka: expected the package confluent-kafka, found none: pip install confluent-kafka"
            ) from None
        places = partitions_of(self.topics)
        log = [at for at in places if at.topic == LOG]
        many = [at for at in places if at.topic == MANY]
        self.targets = Targets(places, GROUP, [WRITER])
        history, cluster = surroundings.history, librdkafka_settings(surroundings)
        self._history = history
        each_per_s = surroundings.per_s / 3
        self._appenders = [
            KafkaAppender(
                name, cluster, log, history, surroundings.rng(f"kafka-{name}"), each_per_s, surroundings.budget
            )
            for name in ("kp0", "kp1")
        ]
        self._writer = KafkaWriter(
            WRITER, cluster, many, history, surroundings.rng(f"kafka-{WRITER}"), each_per_s, surroundings.budget
        )
        self._readers = [
            KafkaReader(name, cluster, places, history, surroundings.rng(f"kafka-{name}"), committed=committed)
            for name, committed in (("kr0", False), ("kr1", True))
        ]
        self._members = [
            KafkaReader(name, cluster, log, history, surroundings.rng(f"kafka-{name}"), committed=False, group=GROUP)
            for name in ("kg0", "kg1")
        ]
        self._assigned = [
            KafkaReader(
                name, cluster, log, history, surroundings.rng(f"kafka-{name}"),
                committed=False, group=ASSIGNED_GROUP, by_server=True,
            )
            for name in ("ka0", "ka1")
        ]  # fmt: skip

    @property
    def _everybody(self) -> list[KafkaClient]:
        return [*self._appenders, self._writer, *self._readers, *self._members, *self._assigned]

    async def begin(self) -> None:
        for client in self._everybody:
            client.start()

    def heard(self) -> Mapping[str, int]:
        appended = {appender.name: appender.done for appender in self._appenders}
        polled = {
            name: sum(member.polls for member in members)
            for name, members in ((GROUP, self._members), (ASSIGNED_GROUP, self._assigned))
        }
        return {**appended, WRITER: self._writer.done, **polled}

    def calm(self) -> None:
        """Do nothing: this workload disturbs nobody."""

    async def finish(self, bound_s: float) -> None:
        writing: list[KafkaSender] = [*self._appenders, self._writer]
        for client in writing:
            client.stopping = True
        late = [client.name for client in writing if not await asyncio.to_thread(client.join, bound_s / len(writing))]
        if late:
            self._history.wrong(f"{bound_s:g} s after everything was mended no outcome is known to {', '.join(late)}")

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [reader.name for reader in self._readers if not reader.is_at(ends)]

    async def close(self) -> None:
        ends = await asyncio.gather(*(asyncio.to_thread(client.end, END_S) for client in self._everybody))
        left = [client.name for client, ended in zip(self._everybody, ends, strict=True) if not ended]
        if left:
            self._history.wrong(f"{', '.join(left)} did not end within {END_S:g} s")
