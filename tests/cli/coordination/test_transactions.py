"""``tidelog transactions`` against a running node, with transactions that live and one that hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cli.in_process import AsyncTidelog, as_json, beside_the_loop, runs_commands
from tidelog import OffsetSpec, TopicPartition
from tidelog.aio import Admin, Producer
from tidelog.cli.root import run
from tidelog.cli.work.hanging import OpenTransaction, open_transactions, without_coordinator
from tidelog.client.admin.group_types import CoordinatorNode
from tidelog.client.admin.transaction_types import ProducerState, TransactionDescription, TransactionState
from tidelog.client.errors import TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import ProducePartition, ProduceRequest
from tidelog.testing.async_cluster import GRPC, AsyncCluster

CONFIG = {"transaction.two.phase.commit.enable": "true", "transaction.partition.verification.enable": "false"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT_ONCE = ("--max-transaction-timeout", "0")


@pytest.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(1, transport=GRPC, config=CONFIG) as found:
        await found.create_topic("t", 2)
        yield found


@pytest.fixture
async def admin(cluster: AsyncCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap) as found:
        yield found


@pytest.fixture
def tidelog(cluster: AsyncCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> AsyncTidelog:
    return beside_the_loop(runs_commands(cluster.bootstrap, capfd, monkeypatch), "transactions")


async def hang(cluster: AsyncCluster, admin: Admin, partition: int, producer_id: int, *, epoch: int = 0) -> None:
    """A batch of a transaction that no coordinator knows, as a client of the first protocol can send it too late to a
    leader that does not ask."""
    broker = cluster.nodes[NodeId(1)].broker
    assert broker is not None
    (topic,) = await admin.describe_topics(["t"])
    batch = encode_values(
        [b"late"], 0, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True
    )
    request = ProduceRequest(-1, 10_000, [ProducePartition(topic.topic_id, partition, bytes(batch))], "nobody")
    produced = broker.replicas.produce(request, first_protocol=True)
    (answer,) = produced if isinstance(produced, list) else await produced
    assert answer.error is ErrorCode.NONE


async def stable(admin: Admin, at: TopicPartition) -> int:
    """The last stable offset."""
    return (await admin.list_offsets({at: OffsetSpec.latest()}, read_committed=True))[at].offset


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("describe",), ("Missing argument", "TRANSACTIONAL_ID")),
        (("describe-producers",), ("Missing option '--topic'",)),
        (("describe-producers", "--topic", "t:x"), ("expected NAME or NAME:0,1, found 't:x'",)),
        (("list", "--state", "sleeping"), ("--state", "sleeping", "ongoing")),
        (("list", "--producer-id", "-1"), ("--producer-id", "-1")),
        (("list", "--duration-filter", "soon"), ("--duration-filter", "soon")),
        (("find-hanging",), ("expected --topic or --broker, found neither",)),
        (("find-hanging", "--topic", "t", "--max-transaction-timeout", "-1"), ("--max-transaction-timeout", "-1")),
        (("abort", "--topic", "t", "--partition", "0"), ("expected --start-offset or --producer-id, found neither",)),
        (
            ("abort", "--topic", "t", "--partition", "0", "--start-offset", "1", "--producer-id", "7"),
            ("expected --start-offset or --producer-id, found both",),
        ),
        (
            ("abort", "--topic", "t", "--partition", "0", "--producer-id", "7", "--producer-epoch", "1"),
            ("expected --producer-id, --producer-epoch and --coordinator-epoch together",),
        ),
        (("abort", "--topic", "t", "--start-offset", "1"), ("Missing option '--partition'",)),
        (("abort", "--topic", "t", "--partition", "-1", "--start-offset", "1"), ("--partition", "-1")),
        (("force-terminate",), ("Missing argument", "TRANSACTIONAL_ID")),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody listens, but is asked nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", f"127.0.0.1:{listener.getsockname()[1]}")
        code = run(["transactions", *arguments])
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


async def test_what_is_not_there_is_one_line_and_exit_code_1(tidelog: AsyncTidelog) -> None:
    for arguments, words in (
        (("describe", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND: nobody"),
        (("force-terminate", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND: nobody"),
        (("describe-producers", "--topic", "elsewhere"), "elsewhere: expected a topic that exists"),
        (("describe-producers", "--topic", "t:5"), "t-5: expected a partition from 0 to 1"),
        (("find-hanging", "--broker", "9"), "--broker: expected one of the brokers 1, found 9"),
        (
            ("abort", "--topic", "t", "--partition", "1", "--start-offset", "7"),
            "t-1: expected an open transaction that began at offset 7, found no open transaction at all",
        ),
    ):
        code, out, err = await tidelog(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert words in err
    assert as_json(await tidelog("list", "--json")) == [], "looking for an id does not make it"


async def test_a_transaction_is_shown_from_its_begin_to_its_end(
    tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin
) -> None:
    assert as_json(await tidelog("list", "--json")) == []
    async with Producer(cluster.bootstrap, transactional_id="pay", transaction_timeout_ms=20_000) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=1)
        (listed,) = as_json(await tidelog("list", "--json"))
        assert (listed["transactional_id"], listed["coordinator"], listed["state"]) == ("pay", 1, "Ongoing")
        producer_id = listed["producer_id"]
        (one,) = as_json(await tidelog("describe", "pay", "--json"))
        assert (one["state"], one["timeout_ms"], one["coordinator"]) == ("Ongoing", 20_000, 1)
        assert one["partitions"] == [{"topic": "t", "partition": 1}]
        assert one["start_time_ms"] > 0
        assert one["duration_ms"] >= 0
        (known,) = as_json(await tidelog("describe-producers", "--topic", "t", "--json"))
        assert (known["topic"], known["partition"], known["producer_id"]) == ("t", 1, producer_id)
        assert (known["last_sequence"], known["transaction_start_offset"], known["coordinator_epoch"]) == (0, 0, None)
        assert known["producer_epoch"] == one["producer_epoch"]
        assert as_json(await tidelog("describe-producers", "--topic", "t:0", "--json")) == []
        for filters, names in (
            (("--state", "ongoing"), ["pay"]),
            (("--state", "Empty", "--state", "prepared"), []),
            (("--producer-id", str(producer_id)), ["pay"]),
            (("--producer-id", str(producer_id + 1)), []),
            (("--duration-filter", "3600000"), []),
        ):
            found = as_json(await tidelog("list", *filters, "--json"))
            assert [one["transactional_id"] for one in found] == names
        await producer.commit_transaction()

    async with asyncio.timeout(100):
        while (await admin.describe_transactions(["pay"]))["pay"].state is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.005)
    code, out, err = await tidelog("describe", "pay", "nobody")
    assert (code, err.count("\n")) == (1, 1)
    assert "TRANSACTIONAL_ID_NOT_FOUND: nobody" in err
    header, _, row = out.splitlines()
    columns = "transactional id, coordinator, producer id, epoch, state, timeout, begun, open for, partitions"
    assert [name.strip() for name in header.split("  ") if name.strip()] == columns.split(", ")
    assert row.split()[0] == "pay"
    assert "CompleteCommit" in row
    (known,) = as_json(await tidelog("describe-producers", "--topic", "t:1", "--json"))
    assert (known["transaction_start_offset"], known["coordinator_epoch"]) == (None, 0)
    code, out, _ = await tidelog("describe-producers", "--topic", "t")
    assert (code, len(out.splitlines())) == (0, 3)


async def test_a_hanging_transaction_is_found_and_ended(
    tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin
) -> None:
    await hang(cluster, admin, 0, 4_711, epoch=3)
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"after it", partition=0)
    assert await stable(admin, T0) == 0
    for where in (("--topic", "t"), ("--topic", "t:0"), ("--broker", "1"), ("--topic", "t", "--broker", "1")):
        (found,) = as_json(await tidelog("find-hanging", *where, *AT_ONCE, "--json"))
        assert (found["topic"], found["partition"], found["transaction_start_offset"]) == ("t", 0, 0)
        assert (found["producer_id"], found["producer_epoch"], found["coordinator_epoch"]) == (4_711, 3, None)
    assert as_json(await tidelog("find-hanging", "--topic", "t:1", *AT_ONCE, "--json")) == []
    assert as_json(await tidelog("find-hanging", "--topic", "t", "--json")) == [], "15 minutes are not over"
    code, out, _ = await tidelog("find-hanging", "--topic", "t", *AT_ONCE)
    header, _, row = out.splitlines()
    columns = "topic, partition, producer id, epoch, coordinator epoch, start offset, last active, quiet for"
    assert [name.strip() for name in header.split("  ") if name.strip()] == columns.split(", ")
    assert (code, row.split()[:6]) == (0, ["t", "0", "4711", "3", "-", "0"])

    code, out, err = await tidelog("abort", "--topic", "t", "--partition", "0", "--start-offset", "1")
    assert (code, out) == (1, "")
    assert "t-0: expected an open transaction that began at offset 1, found those at 0" in err
    code, out, _ = await tidelog("abort", "--topic", "t", "--partition", "0", "--start-offset", "0")
    assert (code, out) == (0, "aborted the transaction of producer 4711, epoch 3, in t-0\n")
    assert await stable(admin, T0) == 3, "the late record, the one after it, the marker"
    assert as_json(await tidelog("find-hanging", "--topic", "t", *AT_ONCE, "--json")) == []


async def test_a_hanging_transaction_is_named_by_its_producer(
    tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin
) -> None:
    await hang(cluster, admin, 1, 4_712, epoch=3)
    naming = ("abort", "--topic", "t", "--partition", "1", "--producer-id", "4712", "--coordinator-epoch", "-1")
    code, out, err = await tidelog(*naming, "--producer-epoch", "2")
    assert (code, out) == (1, "")
    assert "INVALID_PRODUCER_EPOCH: t-1: the producer has a later epoch: that transaction is over" in err
    assert await stable(admin, T1) == 0
    done = as_json(await tidelog(*naming, "--producer-epoch", "3", "--json"))
    assert done == {
        "topic": "t", "partition": 1, "producer_id": 4_712, "producer_epoch": 3, "coordinator_epoch": 0,
    }  # fmt: skip
    assert await stable(admin, T1) == 2


async def test_transactions_whose_coordinators_forgot_them_hang(
    tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin
) -> None:
    async with Producer(cluster.bootstrap, transactional_id="pay") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.send_and_wait("t", b"2", partition=1)
        await admin.delete_topics([TRANSACTION_STATE_TOPIC])
        async with asyncio.timeout(100):
            while as_json(await tidelog("list", "--json")):
                await asyncio.sleep(0.005)
        found = as_json(await tidelog("find-hanging", "--topic", "t", *AT_ONCE, "--json"))
        assert [(one["partition"], one["transaction_start_offset"]) for one in found] == [(0, 0), (1, 0)]
        for partition in ("0", "1"):
            code, _, err = await tidelog("abort", "--topic", "t", "--partition", partition, "--start-offset", "0")
            assert code == 0, err
        assert as_json(await tidelog("find-hanging", "--topic", "t", *AT_ONCE, "--json")) == []
        assert (await stable(admin, T0), await stable(admin, T1)) == (2, 2)
        await producer.close(timeout=0)
    async with Producer(cluster.bootstrap, transactional_id="pay") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"3", partition=0)
        await producer.commit_transaction()


async def test_what_a_coordinator_will_end_does_not_hang_and_is_not_torn(
    tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin
) -> None:
    async with Producer(cluster.bootstrap, transactional_id="pay") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.send_and_wait("t", b"2", partition=1)
        assert as_json(await tidelog("find-hanging", "--topic", "t", *AT_ONCE, "--json")) == []
        (known,) = as_json(await tidelog("describe-producers", "--topic", "t:0", "--json"))
        identity = (
            "--producer-id", str(known["producer_id"]), "--producer-epoch", str(known["producer_epoch"]),
            "--coordinator-epoch", "0",
        )  # fmt: skip
        for naming in (("--start-offset", "0"), identity):
            code, out, err = await tidelog("abort", "--topic", "t", "--partition", "0", *naming)
            assert (code, out, err.count("\n")) == (1, "", 1), err
            assert "t-0: expected a hanging transaction, found one of pay" in err
            assert "`tidelog transactions force-terminate pay`" in err
        await producer.commit_transaction()
    async with asyncio.timeout(100):
        while (await stable(admin, T0), await stable(admin, T1)) != (2, 2):
            await asyncio.sleep(0.005)


async def test_a_prepared_transaction_is_terminated(tidelog: AsyncTidelog, cluster: AsyncCluster, admin: Admin) -> None:
    settings: Any = {"transactional_id": "pay", "transaction_two_phase_commit_enable": True}
    async with Producer(cluster.bootstrap, **settings) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        token = await producer.prepare_transaction()
        (listed,) = as_json(await tidelog("list", "--state", "prepared", "--json"))
        assert listed["transactional_id"] == "pay"
        assert as_json(await tidelog("find-hanging", "--topic", "t", *AT_ONCE, "--json")) == []
        code, out, _ = await tidelog("force-terminate", "pay")
        assert (code, out) == (0, "pay has no open transaction now; its producer is fenced\n")
        assert await stable(admin, T0) == 2
        assert (await admin.describe_transactions(["pay"]))["pay"].topic_partitions == ()
        with pytest.raises(TidelogError) as raised:
            await producer.complete_transaction(token)
        assert raised.value.fatal


# --- which hang, purely ----------------------------------------------------------------------------------


def state(producer_id: int, start: int | None, heard_of_ms: int = 0) -> ProducerState:
    return ProducerState(producer_id, 0, 0, heard_of_ms, None, start)


def coordinated(*partitions: TopicPartition) -> TransactionDescription:
    node = CoordinatorNode(NodeId(1), "h", 1)
    return TransactionDescription("x", node, TransactionState.ONGOING, 7, 0, 60_000, 0, partitions)


def test_only_open_transactions_of_quiet_producers_are_looked_at() -> None:
    found = {T1: (state(1, 5, 99), state(2, 3, 100)), T0: (state(3, None, 0), state(4, 9, 10), state(5, 0, 98))}
    assert [(one.partition, one.producer.producer_id) for one in open_transactions(found, quiet_since_ms=100)] == [
        (T0, 5), (T0, 4), (T1, 1),
    ]  # fmt: skip
    assert [one.producer.producer_id for one in open_transactions(found)] == [5, 4, 2, 1]


def test_a_transaction_hangs_where_its_coordinator_will_write_no_marker() -> None:
    here, there, stranger = (
        OpenTransaction(T0, state(7, 0), 0), OpenTransaction(T1, state(7, 4), 4), OpenTransaction(T0, state(8, 2), 2),
    )  # fmt: skip
    every = [here, there, stranger]
    assert without_coordinator(every, {}) == every
    assert without_coordinator(every, {7: coordinated(T0, T1)}) == [stranger]
    assert without_coordinator(every, {7: coordinated(T0)}) == [there, stranger]
    assert without_coordinator(every, {7: coordinated()}) == every
