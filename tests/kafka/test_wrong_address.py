"""A client at the wrong port learns at once what is there, and the node's log names the client."""

from __future__ import annotations

import http.server
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.cli.allocator import tuned_environment
from tidelog.client.errors import WrongAddressError
from tidelog.metadata_quorum.raft.unreached import UNREACHED_S, Unreached
from tidelog.model.ids import NodeId
from tidelog.proto.transport.network import Address, ConnectionLost
from tidelog.testing import Cluster
from tidelog.testing.ports import free_ports

AT_ONCE_S = 3.0
"""It takes milliseconds; the rest is for a busy machine. Retries would take a minute."""


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def cluster(http_port: int) -> Iterator[Cluster]:
    config = {"http.listener": f"HTTP://127.0.0.1:{http_port}"}
    with Cluster(nodes=1, transport="grpc", config=config) as found:
        yield found


@pytest.fixture(scope="module")
def addresses(cluster: Cluster, http_port: int) -> dict[str, str]:
    found = {name: str(at) for name, at in cluster._inner._addresses[cluster.node_ids[0]].items()}
    return {**found, "HTTP": f"127.0.0.1:{http_port}"}


def list_topics(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.list_topics()


def send(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send("t", b"value")


def begin(bootstrap: str) -> None:
    with Producer(bootstrap, transactional_id="tx") as producer:
        producer.init_transactions()


def read(bootstrap: str) -> None:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.poll(20)


def read_in_group(bootstrap: str) -> None:
    with Consumer(bootstrap, group_id="g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(20)


@pytest.mark.parametrize("listener", ["HTTP", "CONTROLLER"])
@pytest.mark.parametrize("use", [list_topics, send, begin, read, read_in_group])
def test_the_sdk_says_what_is_there(
    cluster: Cluster, addresses: dict[str, str], listener: str, use: Callable[[str], None]
) -> None:
    began = time.monotonic()
    with pytest.raises(WrongAddressError) as caught:
        use(addresses[listener])
    assert time.monotonic() - began < AT_ONCE_S
    what = "this port speaks HTTP" if listener == "HTTP" else "listener CONTROLLER does not serve Metadata"
    assert f"{addresses[listener]}: {what}" in str(caught.value)
    assert f"clients belong at {addresses['KAFKA']}" in str(caught.value)


def test_the_log_names_who_came(
    cluster: Cluster, addresses: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.proto.transport.grpc_serving._NOTICE_AGAIN_S", 0.0)
    for listener in ("HTTP", "CONTROLLER"):
        with pytest.raises(WrongAddressError):
            list_topics(addresses[listener])
    lines = "\n".join(caplog.messages)
    assert re.search(r"listener HTTP: closing the connection of 127\.0\.0\.1:\d+: .* found gRPC; clients belong", lines)
    assert re.search(r"refusing a request of ipv4:127\.0\.0\.1:\d+: listener CONTROLLER does not serve Metad", lines)


def test_a_command_says_what_is_there(addresses: dict[str, str]) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "tidelog.cli.main", "topics", "list", "--bootstrap", addresses["HTTP"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert f"clients belong at {addresses['KAFKA']}" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 4 * AT_ONCE_S  # the interpreter has to start, too


def test_a_good_address_in_the_list_is_enough(addresses: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    for order in (1, -1):
        list_topics(",".join([addresses["HTTP"], addresses["CONTROLLER"], addresses["KAFKA"]][::order]))


def test_another_http_server_is_named() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(WrongAddressError, match=r"expected a broker.s listener, found a server that speaks"):
            list_topics(f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_kafka_client_at_the_http_port_is_named_in_the_log(
    addresses: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = confluent_kafka.Producer(
        {"bootstrap.servers": addresses["HTTP"], "error_cb": errors.append, "log_level": 0}
    )
    until = time.monotonic() + 20
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    assert errors
    assert any("found Kafka's protocol; clients belong" in line for line in caplog.messages)


@pytest.mark.parametrize("listener", ["CLIENT", "CONTROLLER"])
def test_a_kafka_client_at_a_grpc_port_is_cut_off_at_once(addresses: dict[str, str], listener: str) -> None:
    host, _, port = addresses[listener].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        began = time.monotonic()
        peer.sendall(b"\0\0\0\x0c\0\x12\0\0\0\0\0\1\0\2me")
        while peer.recv(1024):
            pass
        assert time.monotonic() - began < AT_ONCE_S


def test_a_voter_that_is_no_controller_is_named(cluster: Cluster, addresses: dict[str, str], tmp_path: Path) -> None:
    """``controller.quorum.voters`` of a broker leads to a listener for clients."""
    settings = {
        "node.id": "7",
        "process.roles": "broker",
        "listeners": f"CLIENT://127.0.0.1:{free_ports(1)[0]}",
        "http.listener": "",
        "controller.quorum.voters": f"1@{addresses['CLIENT']}",
        "log.dirs": str(tmp_path / "data"),
    }
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
    path = tmp_path / "node.log"
    command = [sys.executable, "-m", "tidelog.cli.main", "server", *options, "--cluster-id", cluster.cluster_id]
    with path.open("w") as out:
        node = subprocess.Popen(command, stdout=out, stderr=out, env=tuned_environment(os.environ))
    try:
        until = time.monotonic() + 30
        while (named := f"controller 1 is not reached at {addresses['CLIENT']} (controller.quorum.voters): ") not in (
            text := path.read_text()
        ):
            assert node.poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.05)
        assert re.search(re.escape(named) + r".*listener CLIENT does not serve", text)
    finally:
        node.kill()
        node.wait()


def test_a_silent_voter_is_named_once_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    unreached, at, voter = Unreached(), Address("c", 9094), NodeId(2)
    gone = ConnectionLost("c:9094: refused")
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, UNREACHED_S - 1, UNREACHED_S, UNREACHED_S + 5, 100.0):
            unreached.failed(voter, at, gone, now_s)
    assert caplog.messages == ["controller 2 is not reached at c:9094 (controller.quorum.voters): c:9094: refused"]
    unreached.answered(voter)
    unreached.failed(voter, at, gone, 200.0)
    unreached.failed(voter, at, gone, 200.0 + UNREACHED_S)
    assert len(caplog.messages) == 2
