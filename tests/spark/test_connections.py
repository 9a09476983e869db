"""What a process keeps for the sink's next task: one set of connections, none of which survives a fork or its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tidelog.client.sink_ledger import SinkLedger
from tidelog.client.sink_writer import SinkWriter
from tidelog.spark_connector import connections
from tidelog.testing import Cluster


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    connections.close()
    yield
    connections.close()


def test_the_next_task_finds_the_connections_of_the_one_before(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    counts = []
    for batch in range(3):
        kept = connections.kept()
        with SinkLedger(cluster.bootstrap, topic, _network=kept.network, _background=kept.loop) as ledger:
            job = ledger.new_job(batch)
            with SinkWriter(cluster.bootstrap, job, _network=kept.network, _background=kept.loop) as writer:
                writer.send(topic, b"%d" % batch)
                message = writer.prepare()
            ledger.commit_batch([message])
        counts.append(kept.network.count)
    assert connections.kept() is kept
    assert counts[0] > 0
    assert counts == counts[:1] * 3, "as many as are used at one time, and no more with each batch"
    connections.close()
    assert connections.kept() is not kept
    assert kept.network.count == 0


def test_a_child_has_none_of_its_parents() -> None:
    connections.kept()
    child = os.fork()
    if not child:
        os._exit(connections._kept is not None)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
