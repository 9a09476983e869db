"""``tidelog brokers`` against three nodes."""

from __future__ import annotations

import json

import pytest

from tests.cli.in_process import as_json, runs_commands
from tidelog import NewTopic, errors
from tidelog.model.ids import NodeId
from tidelog.testing import Cluster


def test_a_dead_broker_is_listed_refused_and_forgotten(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(nodes=3, transport="grpc") as cluster, cluster.admin() as admin:
        tidelog = runs_commands(cluster.bootstrap, capfd, monkeypatch)
        admin.create_topics(
            [NewTopic("orders", assignments={0: [3, 1], 1: [2, 3]}), NewTopic("u", assignments={0: [3]})]
        )
        code, _, err = tidelog("brokers", "unregister", "3")
        assert code == 1
        assert "expected a broker without replicas, found 3 with 3 replicas, such as orders-0" in err
        with pytest.raises(errors.InvalidRequestError, match="which is: move its replicas"):
            admin.unregister_broker(3)
        cluster.kill(3)
        assert len(as_json(tidelog("brokers", "list", "--json"))) == 3, "before anybody knows that broker 3 is dead"
        views = [cluster.node(number).view for number in (1, 2)]
        cluster.wait_for(lambda: all(view.image.brokers[NodeId(3)].fenced for view in views), "broker 3 is fenced")
        assert {row["node"]: row["state"] for row in as_json(tidelog("brokers", "list", "--json"))}[3] == "fenced"
        code, out, err = tidelog("topics", "offsets", "u", "orders", "--json")
        offsets = {(row["topic"], row["partition"]): (row["leader"], row["offset"]) for row in json.loads(out)}
        assert code == 0
        assert offsets["u", 0] == (None, None)
        assert offsets["orders", 0] == (1, 0)
        assert "u-0 has no leader" in err
        code, out, err = tidelog("brokers", "unregister", "3", "--force")
        assert code == 0, err
        assert "3 partitions still miss their replica on it" in out
        rows = {row["node"]: row for row in as_json(tidelog("brokers", "list", "--json"))}
        assert (rows[3]["state"], rows[3]["replicas"], rows[3]["leaders"]) == ("not registered", 3, 0)
        assert {node for node, row in rows.items() if row["state"] == "live"} == {1, 2}
        assert rows[1]["leaders"] + rows[2]["leaders"] == 2
        assert all(rows[node]["bytes"] is not None for node in (1, 2))
        with pytest.raises(errors.BrokerIdNotRegisteredError):
            admin.unregister_broker(3)
        cluster.restart(3)

        def back() -> bool:
            topics = [topic for view in views for topic in view.image.topics.values()]
            return all(set(part.isr) == set(part.replicas) for topic in topics for part in topic.in_order())

        cluster.wait_for(back, "broker 3 is back in every ISR")
        assert "not registered" not in tidelog("brokers", "list")[1]
