"""Kafka's own clients, by librdkafka: they record their actions like the SDK's clients. Each runs in a thread.

Their outcomes are those of the others: a delivery that fails in any way is unknown, unless the record was never
accepted. For a transaction three kinds of librdkafka errors matter (KIP-360): retriable, abortable and fatal.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tidelog.chaos.checkers.history import NO_OFFSET, Outcome, Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.history.recording import PADDING, Budget
from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.transaction_work import write_down
from tidelog.chaos.workloads.transactions import Transaction
from tidelog.model.ids import TopicPartition

Heard = Callable[[KafkaError | None, Any], None]

POLL_S: Final = 0.3
MESSAGES_MAX: Final = 100
"""Maximum calls to librdkafka's poll in one of our polls; each returns one message."""
CALL_S: Final = 10.0
"""How long a call of a transaction may take before it is repeated."""
ANY_CLIENT: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 5_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 3,
}
ANY_PRODUCER: Final[Mapping[str, Any]] = {"enable.idempotence": True, "acks": "all", "request.timeout.ms": 5_000}
ABORTS: Final = 0.15
AGAIN_S: Final = 0.2
TIMEOUT_MS: Final = 10_000
"""Transactions are aborted when they are open for this long."""
_WRITES: Final = (1, 2, 3, 6)


_NAMES: Final = {
    "security_protocol": ("security.protocol",),
    "ssl_cafile": ("ssl.ca.location",),
    "ssl_certfile": ("ssl.certificate.location", "ssl.key.location"),
    "sasl_mechanism": ("sasl.mechanism",),
    "sasl_username": ("sasl.username",),
    "sasl_password": ("sasl.password",),
}
"""librdkafka's names of the security settings of a laboratory's client."""


def librdkafka_settings(surroundings: Surroundings) -> dict[str, Any]:
    """Return the address of the cluster, and how a client connects and logs in."""
    secured = {name: value for ours, value in surroundings.security.items() for name in _NAMES[ours]}
    return {"bootstrap.servers": surroundings.kafka_bootstrap, **secured}


class KafkaClient(ABC):
    """A client in its own thread."""

    def __init__(self, name: str, cluster: Mapping[str, Any], history: HistoryFile, rng: random.Random) -> None:
        self.name = name
        self._settings = {**ANY_CLIENT, **cluster, "client.id": name}
        self._history = history
        self._rng = rng
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, bound_s: float) -> bool:
        """Wait up to a bound until it has ended by itself; return whether it has."""
        if self._thread.ident is not None:
            self._thread.join(bound_s)
        return not self._thread.is_alive()

    def end(self, bound_s: float) -> bool:
        """Stop it, and wait up to a bound; return whether it has ended."""
        self._ending.set()
        return self.join(bound_s)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._history.wrong(f"{self.name} ended with {type(error).__name__}: {error}")

    @abstractmethod
    def _run(self) -> None: ...


class KafkaSender(KafkaClient):
    """A client that writes until it is stopped or the run's budget is spent."""

    def __init__(
        self,
        name: str,
        cluster: Mapping[str, Any],
        partitions: Sequence[TopicPartition],
        history: HistoryFile,
        rng: random.Random,
        per_s: float,
        budget: Budget,
    ) -> None:
        super().__init__(name, cluster, history, rng)
        self.stopping = False
        self.done = 0
        """Acknowledged records, or committed transactions."""
        self._partitions = partitions
        self._per_s = per_s
        self._budget = budget
        self._life = 0


class KafkaAppender(KafkaSender):
    """An idempotent producer of unique values; a fatal error ends it, and another one follows."""

    _number = 0

    def _run(self) -> None:
        self._under_way: dict[int, tuple[str, TopicPartition, bytes, float]] = {}
        while not (self.stopping or self._ending.is_set()):
            self._life += 1
            self._live()

    def _live(self) -> None:
        rng = self._rng
        producer = Producer(
            {
                **self._settings,
                **ANY_PRODUCER,
                "linger.ms": rng.choice((0, 5)),
                "batch.size": rng.choice((1_000, 100_000)),
                "compression.type": rng.choice(("none", "lz4")),
            }
        )
        fatal = False
        while not (fatal or self._ending.is_set()) and (self._under_way or not self.stopping):
            wait_s = POLL_S
            if not self.stopping:
                burst = rng.choice((1, 1, 2, 5, 12))
                fatal = not all(self._send(producer) for _ in range(burst))
                wait_s = burst / self._per_s * rng.uniform(0.5, 1.5)
            until = time.monotonic() + wait_s
            while (left := until - time.monotonic()) > 0 and not self._ending.is_set():
                producer.poll(min(left, POLL_S))
        for number in list(self._under_way):
            self._ended(number, Outcome.UNKNOWN)
        producer.purge()

    def _send(self, producer: Producer) -> bool:
        """Send a record; return whether the producer is still usable."""
        if not self._budget.take():
            self.stopping = True
            return True
        rng = self._rng
        number, self._number = self._number, self._number + 1
        at = rng.choice(self._partitions)
        name = f"{self.name}.{self._life}"
        value = b"%s:%d:%s" % (name.encode(), number, b"x" * rng.choice(PADDING))
        self._under_way[number] = (name, at, value, self._history.now())
        try:
            producer.produce(at.topic, value, partition=at.partition, on_delivery=self._heard(number))
        except BufferError:
            self._ended(number, Outcome.FAILED)
        except KafkaException as error:
            self._ended(number, Outcome.FAILED)
            self._history.note(f"{name} ends: {error}")
            return False
        return True

    def _heard(self, number: int) -> Heard:
        def heard(error: KafkaError | None, message: Any) -> None:
            if number not in self._under_way:
                return  # from an incarnation that has ended
            if error is not None:
                self._ended(number, Outcome.UNKNOWN)
            else:
                self.done += 1
                self._ended(number, Outcome.OK, message.offset())

        return heard

    def _ended(self, number: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        name, at, value, began = self._under_way.pop(number)
        self._history.send(Sent(name, number, at, value, outcome, offset, began, self._history.now()))


class KafkaWriter(KafkaSender):
    """All incarnations of one transactional id."""

    @property
    def _at_work(self) -> bool:
        return not (self.stopping or self._ending.is_set()) and self._budget.left > 0

    def _run(self) -> None:
        while self._at_work:
            self._life += 1
            self._number = self._sends = 0
            settings = {"transactional.id": self.name, "transaction.timeout.ms": TIMEOUT_MS}
            producer = Producer({**self._settings, **ANY_PRODUCER, **settings, "linger.ms": self._rng.choice((0, 5))})
            try:
                self._live(producer)
            except KafkaException as error:
                self._history.note(f"{self.name}.{self._life} ends: {error}")
                self._ending.wait(AGAIN_S)
            producer.purge()

    def _live(self, producer: Producer) -> None:
        self._again(lambda: producer.init_transactions(CALL_S))
        while self._at_work:
            self._transact(producer)

    def _transact(self, producer: Producer) -> None:
        rng = self._rng
        self._number += 1
        name = f"{self.name}.{self._life}"
        writes = [
            (rng.choice(self._partitions), b"%s:%d:%d:" % (name.encode(), self._number, number))
            for number in range(rng.choice(_WRITES))
        ]
        key, began = TransactionKey(name, self._number), self._history.now()
        transaction = Transaction(key, writes, transactional_id=self.name, began_s=began)
        try:
            self._decided(producer, transaction)
        finally:
            self._sends = write_down(self._history, transaction, self._sends)
        self.done += transaction.outcome is Outcome.OK
        self._ending.wait(len(writes) / self._per_s * rng.uniform(0.5, 1.5))

    def _decided(self, producer: Producer, transaction: Transaction) -> None:
        """Run a transaction to its end. Raises ``KafkaException`` for fatal errors: then the outcome is unknown."""
        try:
            producer.begin_transaction()
            for number, (at, value) in enumerate(transaction.writes):
                self._budget.take()
                now = self._history.now()
                transaction.delivered[number] = (Outcome.UNKNOWN, NO_OFFSET, now, now)
                producer.produce(at.topic, value, partition=at.partition, on_delivery=self._heard(transaction, number))
            if self._rng.random() >= ABORTS:
                transaction.committing_s = self._history.now()
                self._again(lambda: producer.commit_transaction(CALL_S))
                transaction.outcome = Outcome.OK
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._again(lambda: producer.abort_transaction(CALL_S))
        transaction.outcome = Outcome.FAILED

    def _again(self, call: Callable[[], object]) -> None:
        """Repeat a call until it succeeds. Raises ``KafkaException`` for errors that a retry does not solve."""
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._ending.is_set():
                    raise

    def _heard(self, transaction: Transaction, number: int) -> Heard:
        def heard(error: KafkaError | None, message: Any) -> None:
            if error is None:
                began = transaction.delivered[number][2]
                transaction.delivered[number] = (Outcome.OK, message.offset(), began, self._history.now())

        return heard


class KafkaReader(KafkaClient):
    """Reads partitions from their start, or topics as a member of a group."""

    def __init__(
        self,
        name: str,
        cluster: Mapping[str, Any],
        partitions: Sequence[TopicPartition],
        history: HistoryFile,
        rng: random.Random,
        *,
        committed: bool,
        group: str = "",
        by_server: bool = False,
    ) -> None:
        """``by_server``: the group's coordinator assigns (KIP-848)."""
        super().__init__(name, cluster, history, rng)
        self.polls = 0
        self._protocol: dict[str, Any] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
        if by_server:
            self._protocol = {"group.protocol": "consumer"}
        self.positions = dict.fromkeys(partitions, 0)
        self._committed = committed
        self._group = group
        self._began = 0.0
        self._found: dict[TopicPartition, list[tuple[int, bytes]]] = {}

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether it has reached the ends of its partitions."""
        return all(position >= ends.get(at, 0) for at, position in self.positions.items())

    def _run(self) -> None:
        consumer = Consumer(
            {
                **self._settings,
                "group.id": self._group or self.name,
                "enable.auto.commit": bool(self._group),
                "auto.commit.interval.ms": 500,
                **self._protocol,
                "auto.offset.reset": "earliest" if self._group else "error",
                "isolation.level": "read_committed" if self._committed else "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": self._rng.choice((100, 500)),
                "fetch.error.backoff.ms": 50,
                "check.crcs": True,
            }
        )
        if self._group:
            consumer.subscribe(sorted({at.topic for at in self.positions}), on_assign=self._assigned)
        else:
            consumer.assign([KafkaPartition(at.topic, at.partition, 0) for at in self.positions])
            for at in self.positions:
                self._history.position(Positioned(self.name, at, 0))
        while not self._ending.is_set():
            self._began = self._history.now()
            message = consumer.poll(POLL_S)
            for _ in range(MESSAGES_MAX):
                if message is None:
                    break
                self._take(message)
                message = consumer.poll(0)
            else:
                if message is not None:
                    self._take(message)
            self._write_down()
        consumer.close()

    def _take(self, message: Any) -> None:
        at = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is None:
            self._found.setdefault(at, []).append((message.offset(), message.value() or b""))
            self.positions[at] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self.positions[at] = max(self.positions[at], message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._history.wrong(f"{self.name}: its position was refused: {error}")

    def _write_down(self) -> None:
        ended = self._history.now()
        for at, found in self._found.items():
            self._history.poll(Polled(self.name, at, found, self._began, ended, read_committed=self._committed))
        self.polls += bool(self._found)
        self._found = {}

    def _assigned(self, consumer: object, partitions: Sequence[KafkaPartition]) -> None:
        self._write_down()  # records before this belong to its former assignment
        for one in partitions:
            self._history.position(Positioned(self.name, TopicPartition(one.topic, one.partition)))
