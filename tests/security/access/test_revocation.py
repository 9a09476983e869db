"""Rights come and go while clients of both protocols work on three nodes, and controllers fail: a right that was taken
back is refused on every node, one that was given holds on every node."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka
import pytest

from tests.security.conftest import Certificates
from tidelog import Admin, NewTopic, Producer
from tidelog.client.errors import ErrorCode, TidelogError
from tidelog.security.acls import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.testing.cluster import Cluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
BOUND_S = 90.0
"""How long a change may take to be seen on every node; in fact it is some milliseconds."""
MORE = 3
"""Outcomes of each client after that."""
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class Attempt:
    """A write to a partition. ``allowed`` ``None``: another error, which tells nothing of rights."""

    who: str
    begun_s: float
    ended_s: float
    allowed: bool | None


@dataclass(frozen=True)
class Change:
    """From ``seen_s`` on, when every client had met it, rights are as ``given`` says, until the next change begins."""

    given: bool
    begun_s: float
    seen_s: float


def faults(changes: list[Change], attempts: list[Attempt]) -> list[Attempt]:
    """Attempts between the moment at which a change was seen and the next change, with the outcome of before it."""
    ends = [each.begun_s for each in changes[1:]] + [float("inf")]
    return [
        attempt
        for change, end_s in zip(changes, ends, strict=True)
        for attempt in attempts
        if attempt.allowed not in (None, change.given) and attempt.begun_s > change.seen_s and attempt.ended_s < end_s
    ]


def test_the_judge_sees_rights_that_outlive_their_end() -> None:
    changes = [Change(True, 0, 1), Change(False, 50, 51)]
    late = [Attempt("a", 52, 53, True), Attempt("a", 30, 31, False)]
    fine = [Attempt("a", 40, 61, True), Attempt("a", 50.5, 56, True), Attempt("a", 70, 71, None)]
    assert faults(changes, late + fine) == [late[1], late[0]]


@dataclass
class Writers:
    """A client of each protocol for each partition, which all write until they are told to stop."""

    attempts: list[Attempt] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, who: str, write: Callable[[], bool | None]) -> None:
        def work() -> None:
            while not self.stopped.wait(0.02):
                begun_s = time.monotonic()
                allowed = write()
                self.attempts.append(Attempt(who, begun_s, time.monotonic(), allowed))

        self.threads.append(threading.Thread(target=work, name=who))
        self.threads[-1].start()

    def end(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(120)

    def wait_for(self, allowed: bool, since_s: float, count: int) -> float:
        """Until each of them has had this outcome so often; returns when that was."""
        deadline = time.monotonic() + BOUND_S
        while True:
            found = Counter(each.who for each in self.attempts[:] if each.begun_s > since_s and each.allowed is allowed)
            if all(found[thread.name] >= count for thread in self.threads):
                return time.monotonic()
            assert time.monotonic() < deadline, (allowed, found)
            time.sleep(0.02)


def sdk(producer: Producer, partition: int) -> Callable[[], bool | None]:
    def write() -> bool | None:
        try:
            producer.send("t", b"v", partition=partition).result(60)
        except TidelogError as error:
            return False if error.code == DENIED else None
        return True

    return write


def librdkafka(producer: confluent_kafka.Producer, partition: int) -> Callable[[], bool | None]:
    def write() -> bool | None:
        outcome: list[bool | None] = []

        def told(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            outcome.append(True if error is None else False if error.code() == DENIED else None)

        try:
            producer.produce("t", b"v", partition=partition, on_delivery=told)
        except confluent_kafka.KafkaException:
            producer.poll(0)
            return None  # it remembers a denial until its next look at the metadata; no broker was asked
        producer.flush(60)
        return outcome[0] if outcome else None

    return write


def entry(user: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, "t", PatternType.LITERAL, f"User:{user}", "*", operation, PermissionType.ALLOW
    )


@pytest.fixture
def cluster(certificates: Certificates) -> Cluster:
    settings = certificates.settings("KAFKA CLIENT REPLICATION CONTROLLER", "required")
    settings |= {
        "ssl.principal.mapping.rules": r"RULE:^CN=(.*)$/$1/",
        "authorizer.class.name": STANDARD,
        "super.users": "User:node;User:root",
        "min.insync.replicas": "2",
    }
    return Cluster(nodes=3, transport="grpc", config=settings)


def test_a_right_that_was_taken_back_is_refused_on_every_node(cluster: Cluster, certificates: Certificates) -> None:
    changes: list[Change] = []
    writers = Writers()
    with cluster, Admin(cluster.bootstrap, **certificates.client("root")) as admin:
        admin.create_topics([NewTopic("t", assignments={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})])
        users = ["alice", "bob"]
        admin.create_acls([entry(user, AclOperation.DESCRIBE) for user in users])
        alice = certificates.client("alice")
        own = [Producer(cluster.bootstrap, enable_idempotence=False, **alice) for _ in range(3)]
        foreign = [confluent_kafka.Producer(certificates.librdkafka(cluster.kafka_bootstrap, "bob")) for _ in range(3)]

        def change(given: bool) -> None:
            begun_s = time.monotonic()
            if given:
                admin.create_acls([entry(user, AclOperation.WRITE) for user in users], timeout=90)
            else:
                admin.delete_acls([AclFilter(operation=AclOperation.WRITE)], timeout=90)
            seen_s = writers.wait_for(given, time.monotonic(), 1)
            changes.append(Change(given, begun_s, seen_s))
            writers.wait_for(given, seen_s, MORE)

        try:
            for partition in range(3):
                writers.begin(f"sdk {partition}", sdk(own[partition], partition))
                writers.begin(f"librdkafka {partition}", librdkafka(foreign[partition], partition))
            change(True)
            change(False)
            change(True)
            leader = cluster.wait_for_controller()
            cluster.kill(leader)
            change(False)
            cluster.restart(leader)
            change(True)
            change(False)
        finally:
            writers.end()
            for producer in own:
                producer.close()
    assert faults(changes, writers.attempts) == []
    assert {each.allowed for each in writers.attempts} >= {True, False}
