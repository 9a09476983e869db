"""``tidelog transactions sinks`` against a running node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.cli.in_process import AsyncTidelog, as_json, beside_the_loop, runs_commands
from tidelog.testing.async_cluster import GRPC, AsyncCluster


@pytest.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(1, transport=GRPC) as found:
        await found.create_topic("t", 2)
        yield found


@pytest.fixture
def sinks(cluster: AsyncCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> AsyncTidelog:
    return beside_the_loop(runs_commands(cluster.bootstrap, capfd, monkeypatch), "transactions", "sinks")


async def test_a_sink_from_its_first_batch_until_it_is_forgotten(cluster: AsyncCluster, sinks: AsyncTidelog) -> None:
    assert as_json(await sinks("list", "--json")) == []
    async with cluster.sink_ledger("orders to lake") as ledger:
        first, second = ledger.new_job(0), ledger.new_job(1)
        async with cluster.sink_writer(first) as writer:
            await writer.send("t", b"1")
            await ledger.commit_batch([await writer.prepare()])
        async with cluster.sink_writer(second) as writer:
            await writer.send("t", b"2")
            message = await writer.prepare()
            (listed,) = as_json(await sinks("list", "--json"))
            assert listed == {
                "sink": "orders to lake", "coordinator": 1, "last_batch": 0, "batch": 1, "transactions": 1,
            }  # fmt: skip
            (described,) = as_json(await sinks("describe", "orders to lake", "--json"))
            assert described["last"] == {"batch": 0, "job": first.job}
            assert described["current"] == {"batch": 1, "job": second.job}
            (transaction,) = described["transactions"]
            assert (transaction["state"], transaction["producer_id"]) == ("Prepared", message.producer_id)
            assert transaction["timeout_ms"] == 3_600_000
            for command in (("list",), ("describe", "orders to lake")):
                code, out, err = await sinks(*command)
                assert code == 0, err
                assert "orders to lake" in out
            assert second.job in out
            code, _, err = await sinks("delete", "orders to lake")
            assert code == 1
            assert "abort its job" in err
            code, _, err = await sinks("abort", "orders to lake", "--batch", "0", "--job", first.job)
            assert code == 1
            assert "is decided" in err
            abort = ("abort", "orders to lake", "--batch", "1", "--job", second.job)
            code, out, err = await sinks(*abort)
            assert (code, out) == (0, f"job {second.job} of orders to lake was aborted\n"), err
            assert as_json(await sinks(*abort, "--json")) == {
                "sink": "orders to lake", "batch": 1, "job": second.job, "last_batch": 0,
            }  # fmt: skip
        async with asyncio.timeout(100):
            while (await ledger.describe()).transactions:
                await asyncio.sleep(0.02)
        gone = {"sink": "orders to lake", "deleted": True}
        assert as_json(await sinks("delete", "orders to lake", "--json")) == gone
    assert as_json(await sinks("list", "--json")) == []


async def test_what_is_not_there_is_one_line(sinks: AsyncTidelog) -> None:
    for command in (("describe", "nothing"), ("delete", "nothing")):
        code, _, err = await sinks(*command)
        assert code == 1
        assert "expected a sink that has written, found none called 'nothing'" in err
        assert err.count("\n") == 1
