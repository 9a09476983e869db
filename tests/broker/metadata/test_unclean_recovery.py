"""All brokers stop at once, and not all of them keep their records: the records are there if one broker kept them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import Ledger
from tidelog.broker.metadata.log_end_reports import LogEndReports
from tidelog.testing.async_cluster import AsyncCluster


def cut_tail(directory: Path, share: float) -> int:
    """Cut the newest segment of the topic's log to a share of its size, as a loss of power may; returns the bytes
    that went."""
    segment = max(directory.glob("t-0*/*.log"))
    size = segment.stat().st_size
    kept = int(size * share)
    with segment.open("rb+") as file:
        file.truncate(kept)
    return size - kept


@pytest.mark.parametrize("transport", ["memory", "grpc"])
@pytest.mark.parametrize("losing", [1, 2], ids=["the leader loses its tail", "all but one follower lose theirs"])
async def test_killed_at_once_and_nothing_is_lost_that_one_of_them_still_has(transport: str, losing: int) -> None:
    async with AsyncCluster(3, transport=transport) as cluster:
        await cluster.create_topic("t", 1, 3, {"min.insync.replicas": "2"})
        await cluster.wait_for_isr("t", 0, 3)
        async with Ledger(cluster, "t", 1) as sent:
            await sent.more(300)
            await sent.finish()
        assert not sent.failed
        leader = cluster.leader_of("t", 0)
        assert leader is not None
        order = [leader, *(node for node in cluster.node_ids if node != leader)]
        for node in list(cluster.nodes):
            await cluster.kill(node)
        for node in order[:losing]:
            assert cut_tail(cluster.node_directory(node), 0.3) > 0
        await cluster.start_many(cluster.node_ids)
        await cluster.wait_ready()
        await cluster.wait_for_isr("t", 0, 3)
        await sent.judge()


async def test_without_reports_there_is_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would show nothing if any broker could lead."""
    async with AsyncCluster(3) as cluster:
        await cluster.create_topic("t", 1, 3, {"min.insync.replicas": "3"})  # remembers who leaves while they die
        await cluster.wait_for_isr("t", 0, 3)
        for node in list(cluster.nodes):
            await cluster.kill(node)
        monkeypatch.setattr(LogEndReports, "_ends", lambda _: [])
        await cluster.start_many(cluster.node_ids)
        remembered = {1, 2, 3}

        def is_asked_for() -> bool:
            for node in cluster.nodes.values():
                topic = node.view.image.topic("t")
                if topic is not None and set(topic.partitions[0].last_known_elr) == remembered:
                    return True
            return False

        await cluster.wait_for(is_asked_for, "all three are remembered")
        assert cluster.leader_of("t", 0) is None
