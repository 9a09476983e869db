"""The admin client's calls about transactions against three nodes: ids that lie on all of them, and one that dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tidelog import Admin, OffsetSpec, TopicPartition
from tidelog.client.admin.transaction_types import AbortTransactionSpec, TransactionState
from tidelog.client.errors import TidelogError
from tidelog.model.errors import EXCEPTIONS, ErrorCode
from tidelog.testing import Cluster

IDS = [f"pay-{number}" for number in range(9)]
PARTITIONS = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as found:
        found.create_topic("t", 3)
        yield found


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with cluster.admin() as found:
        yield found


def ends(admin: Admin, *, read_committed: bool) -> list[int]:
    found = admin.list_offsets(dict.fromkeys(PARTITIONS, OffsetSpec.latest()), read_committed=read_committed)
    return [found[at].offset for at in PARTITIONS]


def test_transactions_outlive_the_node_that_coordinated_them(cluster: Cluster, admin: Admin) -> None:
    with ExitStack() as stack:
        producers = [stack.enter_context(cluster.producer(transactional_id=name)) for name in IDS]
        for number, producer in enumerate(producers):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_and_wait("t", b"open", partition=number % 3)
        before = admin.describe_transactions(IDS)
        assert {one.coordinator.node_id for one in before.values()} == {1, 2, 3}
        assert [one.topic_partitions for one in before.values()] == [(at,) for at in PARTITIONS * 3]
        assert [one.transactional_id for one in admin.list_transactions(states=["Ongoing"])] == IDS
        producer_ids = [one.producer_id for one in before.values()]
        (only,) = admin.list_transactions(producer_ids=[producer_ids[4]])
        assert (only.transactional_id, only.coordinator) == (IDS[4], before[IDS[4]].coordinator.node_id)

        cluster.kill(2)
        after = admin.describe_transactions(IDS)
        assert {one.coordinator.node_id for one in after.values()} == {1, 3}
        assert [(one.producer_id, one.state, one.transaction_start_time_ms) for one in after.values()] == [
            (one.producer_id, TransactionState.ONGOING, one.transaction_start_time_ms) for one in before.values()
        ]
        assert [(one.transactional_id, one.producer_id) for one in admin.list_transactions()] == [
            *zip(IDS, producer_ids, strict=True)
        ]
        found = admin.describe_producers(PARTITIONS)
        assert {
            producer.producer_id: at
            for at, known in found.items()
            for producer in known
            if producer.current_transaction_start_offset is not None
        } == {producer_id: PARTITIONS[number % 3] for number, producer_id in enumerate(producer_ids)}

        producers[0].commit_transaction()
        fenced = admin.fence_producers(IDS[1:])
        assert [one.producer_id for one in fenced.values()] == producer_ids[1:]
        assert all(one.producer_epoch > before[name].producer_epoch for name, one in fenced.items())
        for producer in producers[1:]:
            with pytest.raises(TidelogError) as raised:
                producer.commit_transaction()
            assert raised.value.fatal
        cluster.restart(2)
        admin.force_terminate_transaction(IDS[0])
        assert admin.list_transactions(states=["Ongoing", "PrepareAbort"]) == []
    assert ends(admin, read_committed=True) == ends(admin, read_committed=False)


def test_what_is_over_in_a_partition_is_not_aborted_there(cluster: Cluster, admin: Admin) -> None:
    with cluster.producer(transactional_id="once") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_and_wait("t", b"kept", partition=0)
        ((at, known),) = admin.describe_producers(PARTITIONS[:1]).items()
        (mine,) = [one for one in known if one.current_transaction_start_offset is not None]
        producer.commit_transaction()
    deadline = time.monotonic() + 30
    while admin.describe_transactions(["once"])["once"].state is not TransactionState.COMPLETE_COMMIT:
        assert time.monotonic() < deadline
    with pytest.raises(EXCEPTIONS[ErrorCode.INVALID_PRODUCER_EPOCH], match="t-0: the producer has a later epoch"):
        admin.abort_transaction(AbortTransactionSpec.of(at, mine))


def test_offsets_in_a_transaction_are_a_partition_of_it(cluster: Cluster, admin: Admin) -> None:
    with cluster.producer(transactional_id="offsets") as producer, cluster.consumer(group_id="g") as consumer:
        consumer.subscribe(["t"])
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({PARTITIONS[0]: 1}, consumer.group_metadata())
        (at,) = admin.describe_transactions(["offsets"])["offsets"].topic_partitions
        assert at.topic == "__consumer_offsets"
        (known,) = [
            one for one in admin.describe_producers([at])[at] if one.current_transaction_start_offset is not None
        ]
        assert known.producer_id == admin.describe_transactions(["offsets"])["offsets"].producer_id
        admin.force_terminate_transaction("offsets")
        assert admin.list_consumer_group_offsets("g", require_stable=True) == {}
