"""``tidelog brokers api-versions``: what nodes say at their Kafka listeners."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.cli.in_process import as_json, runs_commands
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.kafka_versions import ask_versions
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.model.settings.properties import format_properties
from tidelog.proto.transport.network import Address
from tidelog.testing import Cluster

PRODUCE, API_VERSIONS = 0, 18


def test_every_node_or_those_named(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(nodes=3, transport="grpc") as cluster:
        tidelog = runs_commands(cluster.bootstrap, capfd, monkeypatch)
        answers = as_json(tidelog("brokers", "api-versions", "--json"))
        assert [answer["node"] for answer in answers] == [1, 2, 3]
        assert [answer["address"] for answer in answers] == cluster.kafka_bootstrap.split(",")
        for answer in answers:
            apis = {api["key"]: api for api in answer["apis"]}
            assert apis[PRODUCE]["name"] == "Produce"
            assert apis[API_VERSIONS] == {"key": API_VERSIONS, "name": "ApiVersions", "min": 0, "max": 4}
            supported = {one["name"]: (one["min"], one["max"]) for one in answer["supported_features"]}
            assert supported == {name: levels for name, levels in SUPPORTED_FEATURES.items() if levels[1] > 0}
            finalized = {one["name"]: one["level"] for one in answer["finalized_features"]}
            assert finalized == dict(cluster.image.features)
            assert answer["finalized_features_epoch"] > 0
        assert [answer["node"] for answer in as_json(tidelog("brokers", "api-versions", "2", "--json"))] == [2]
        code, out, err = tidelog("brokers", "api-versions", "3", "1")
        assert code == 0, err
        assert out.splitlines()[0].split() == ["key", "API", "node", "1", "node", "3"]
        assert any(line.split() == ["18", "ApiVersions", "0-4", "0-4"] for line in out.splitlines())
        code, _, err = tidelog("brokers", "api-versions", "9")
        assert code == 1
        assert "expected live brokers, of [1, 2, 3], found 9" in err


def test_over_tls(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Cluster(security="tls+scram") as cluster:
        tidelog = runs_commands(cluster.bootstrap, capfd, monkeypatch)
        settings = tmp_path / "admin.properties"
        settings.write_text(format_properties({name: str(value) for name, value in cluster.client_settings().items()}))
        (answer,) = as_json(tidelog("brokers", "api-versions", "--command-config", str(settings), "--json"))
        assert answer["address"] == cluster.kafka_bootstrap
        with pytest.raises(CommandFailed, match="ApiVersions"):
            ask_versions(Address.read(cluster.kafka_bootstrap), None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "expected a Kafka protocol answer"),
        (b"\0\0\0\x10\0\0\0\x01\0\x23" + bytes(10), "expected version 4 of ApiVersions to be served, found error 35"),
        (b"\0\0\0\x10\0\0\0\x01\0\0abc", "expected 10 more bytes"),
        (b"\0\0\0\x08\0\0\0\x01\0\0\xff\xff", "expected"),
        (b"", "expected 10 more bytes"),
    ],
)
def test_what_is_no_answer_is_said(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            with pytest.raises(CommandFailed, match=said):
                ask_versions(Address("127.0.0.1", server.getsockname()[1]), None)
        finally:
            serving.join()
