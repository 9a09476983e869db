"""A secured laboratory: the same faults, workloads and judges, with TLS, logins access control on every listener."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

import pytest

from tidelog import Admin
from tidelog.chaos.laboratory.command import EXIT_HELD, main
from tidelog.chaos.laboratory.history.history_file import read_history
from tidelog.chaos.laboratory.processes.laboratory import Laboratory
from tidelog.client.errors import ErrorCode, TidelogError
from tidelog.security.acls import AclFilter

from .test_runs import descendants_that_serve, schedule

pytestmark = pytest.mark.timeout(600)  # the first test of a machine builds the proxy server

CUT = {"topology": "isolate", "kind": "cut"}


def test_faults_on_a_secured_cluster_lose_nothing(
    toxiproxy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A leader is killed, the controller is cut off from the others, and connections break in the middle: clients of
    both protocols connect, shake hands and log in again, and are held to what they are held to otherwise."""
    plan = schedule(
        tmp_path / "plan.jsonl",
        (1.5, 1, "kill", "leader:0"),
        (3.0, 1, "start", "leader:0"),
        (5.5, 2, "impair", "controller"),
        (7.5, 2, "heal", "controller"),
        (9.0, 3, "impair", "leader:1"),
        (10.0, 3, "heal", "leader:1"),
        (10.1, 4, "rotate", ""),
    )
    steps = json.loads(plan.read_text())
    for step in steps["schedule"]:
        if step["act"] == "impair":
            reset = {"topology": "clients", "kind": "reset", "ms": 0}
            step["options"] = CUT if step["target"] == "controller" else reset
    plan.write_text(json.dumps(steps) + "\n")
    asked = ["run", "--seconds", "11", "--replay", str(plan), "--dir", str(tmp_path / "runs"), "--rate", "150"]
    assert main([*asked, "--workload", "append,kafka", "--security", "tls+scram"]) == EXIT_HELD, capfd.readouterr()
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    recorded = read_history(path)
    assert recorded.run["security"] == "tls+scram"
    assert "--security tls+scram" in recorded.run["again"]
    assert not any(fault["trouble"] for fault in recorded.faults)
    assert {send.partition.topic for send in recorded.history.sends} >= {"log", "k-log", "k-many"}
    assert descendants_that_serve(tmp_path) == []


def test_every_listener_is_secured_and_clients_have_only_their_rights(toxiproxy: Path, tmp_path: Path) -> None:
    with Laboratory.running(tmp_path / "it", toxiproxy, nodes=1, security="tls+scram") as laboratory:
        keys = laboratory.cluster.directory / "certificates"
        node = ssl.create_default_context(cafile=keys / "ca.pem")
        node.load_cert_chain(keys / "node-1.pem")
        node.set_alpn_protocols(["h2"])
        own = laboratory.cluster.nodes[1].ports
        for port in (own.client, own.kafka, own.replication, own.controller):
            with (
                socket.create_connection(("127.0.0.1", port), 20) as sock,
                node.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
            ):
                assert secured.version() == "TLSv1.3"
        with Admin(laboratory.bootstrap, **laboratory.admin) as admin:
            assert admin.describe_acls(AclFilter()) == []
        with Admin(laboratory.bootstrap, **laboratory.clients) as client:
            with pytest.raises(TidelogError) as refused:
                client.describe_acls(AclFilter())
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        words = laboratory.clients["sasl_password"]
        assert words
        assert not any(
            words in path.read_text(errors="replace")
            for path in laboratory.directory.rglob("*")
            if path.is_file() and path.name != "users"
        )
