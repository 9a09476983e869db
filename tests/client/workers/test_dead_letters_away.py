"""Workers whose topic for dead letters is away: nothing is lost, the error says why, and they go on once it is back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tidelog import AclBinding, AclOperation, ConsumerRecord, NewTopic, PatternType, PermissionType, ResourceType
from tidelog.client.errors import RequestTimedOutError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from tidelog.testing import Cluster

from .test_workers import Running, committed, fill, letters, workers

TELLER = "teller"
"""May do everything but write to the forbidden topic."""
SHORT_WAITS = {
    "max_block_ms": 700,
    "transaction_timeout_ms": 500,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "auto.create.topics.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with Cluster(2, controllers=1, transport="grpc", security="scram", config=config) as made:
        made.add_user(TELLER)
        for kind, operation in (
            (ResourceType.TOPIC, AclOperation.READ),
            (ResourceType.GROUP, AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
        ):
            allow(made, kind, "orders", operation)
        for dead in ("dlq.deleted", "dlq.without-leader"):
            allow(made, ResourceType.TOPIC, dead, AclOperation.WRITE)
        with made.producer(transactional_id="first") as producer:
            producer.init_transactions()  # the short waits below are not for a new coordinator
        yield made


def allow(cluster: Cluster, kind: ResourceType, name: str, operation: AclOperation) -> None:
    with cluster.admin() as admin:
        entry = (kind, name, PatternType.PREFIXED, f"User:{TELLER}", "*", operation)
        admin.create_acls([AclBinding(*entry, PermissionType.ALLOW)])


def create(cluster: Cluster, name: str) -> None:
    """With its only replica on node 2."""
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(name, assignments={0: [2]})])
    cluster.wait_for_leader(name, 0)


def delete(cluster: Cluster, name: str) -> None:
    with cluster.admin() as admin:
        admin.delete_topics([name])


NOTHING: Callable[[Cluster, str], None] = lambda *_: None  # noqa: E731
CASES = {
    "deleted": (delete, create, UnknownTopicOrPartitionError),
    "forbidden": (
        NOTHING,
        lambda cluster, dead: allow(cluster, ResourceType.TOPIC, dead, AclOperation.WRITE),
        TopicAuthorizationFailedError,
    ),
    "without-leader": (
        lambda cluster, _: cluster.stop_node(2),
        lambda cluster, _: cluster.start_node(2),
        RequestTimedOutError,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_and_it_goes_on_once_the_topic_is_back(cluster: Cluster, case: str) -> None:
    topic, dead = f"orders.{case}", f"dlq.{case}"
    take_away, bring_back, error = CASES[case]
    cluster.create_topic(topic, partitions=2)
    create(cluster, dead)
    fill(cluster, topic, 20)
    take_away(cluster, dead)
    handled: Counter[int] = Counter()
    again = threading.Event()

    def handler(record: ConsumerRecord) -> None:
        number = int(record.value or b"")
        handled[number] += 1
        if number == 3:
            if handled[number] > 1:
                again.set()
            raise ValueError("three")

    access = cluster.client_settings(TELLER)

    def start(**waits: int) -> Running:
        settings = {"consumer_settings": dict(access), "producer_settings": {**access, **waits}}
        return Running(workers(cluster, topic, handler, dead_letters=dead, **settings))

    with pytest.raises(error) as raised:
        start(**SHORT_WAITS).ended()
    note = f"failed records could not be copied to {dead}; they come again at the next run"
    assert note in raised.value.__notes__
    if case == "forbidden":
        bring_back(cluster, dead)
    running = start()
    assert again.wait(60), "the record comes again"
    if case != "forbidden":
        bring_back(cluster, dead)
    while len(handled) < 20 or not running.of.counts.dead:
        running.check()
    running.of.stop()
    running.ended()
    assert committed(cluster, topic) == 20
    assert [letter.value for letter in letters(cluster, dead)] == [b"3"]
