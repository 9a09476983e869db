"""Connections kept for the sink's next task: one set per process, none of which survives a fork or the process's
end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tidelog.client.sink.blocking_ledger import SinkLedger
from tidelog.client.sink.blocking_writer import SinkWriter
from tidelog.model.client_quotas import PRODUCER_BYTE_RATE, ClientQuotaEntity
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
    for batch in range(4):
        kept = connections.kept({})
        with SinkLedger(cluster.bootstrap, topic, _network=kept.network, _background=kept.loop) as ledger:
            job = ledger.new_job(batch)
            with SinkWriter(cluster.bootstrap, job, _network=kept.network, _background=kept.loop) as writer:
                writer.send(topic, b"%d" % batch)
                message = writer.prepare()
            ledger.commit_batch([message])
        counts.append(kept.network.count)
    assert connections.kept({}) is kept
    assert counts[0] > 0
    # The first client began at the Kafka listener, which sent it on: that connection is not kept.
    assert counts[1:] == counts[1:2] * 3, "as many as are used at one time, and no more with each batch"
    connections.close()
    assert connections.kept({}) is not kept
    assert kept.network.count == 0


def test_brokers_know_each_clients_id(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    named = connections.kept({"client_id": "reports"})
    assert connections.kept({}) is not named
    entity = ClientQuotaEntity(client_id="reports")
    with cluster.admin() as admin:
        admin.alter_client_quotas({entity: {PRODUCER_BYTE_RATE: 1e9}})
        try:
            broker = cluster.node(1).broker
            assert broker is not None
            quotas = broker.client_quotas
            cluster.wait_for(lambda: quotas.any_set, "the node to know of the quota")
            with SinkLedger(cluster.bootstrap, topic, _network=named.network, _background=named.loop) as ledger:
                job = ledger.new_job(0)
                with SinkWriter(cluster.bootstrap, job, _network=named.network, _background=named.loop) as writer:
                    writer.send(topic, b"x")
                    message = writer.prepare()
                assert ("", "reports") in quotas.produce.sensors
                ledger.commit_batch([message])
        finally:
            admin.alter_client_quotas({entity: {PRODUCER_BYTE_RATE: None}})


def test_a_child_has_none_of_its_parents() -> None:
    connections.kept({})
    child = os.fork()
    if not child:
        os._exit(bool(connections._kept))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
