"""``tidelog security`` and ``--command-config``: from nothing to a secured cluster with commands alone."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tidelog.cli.root import run
from tidelog.cli.terminal.connection import read_command_config
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import parse_properties
from tidelog.testing.cluster import Cluster


def properties(path: Path) -> dict[str, str]:
    return {name: found.value for name, found in parse_properties(path.read_text()).items()}


def test_a_cluster_is_secured_by_what_the_command_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "keys"
    assert run(["security", "init", str(place), "--node", "1=127.0.0.1,localhost", "--user", "alice"]) == 0
    assert "the authority's certificate, for everybody" in capsys.readouterr().out
    assert {path.name for path in place.iterdir()} == {
        "ca.pem", "ca-key.pem", "node-1.pem", "node-1.properties", "alice.pem", "alice.properties",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    with Cluster(nodes=1, transport="grpc", config=properties(place / "node-1.properties")) as cluster:
        asked = ["topics", "create", "t", "--bootstrap", cluster.kafka_bootstrap]
        assert run([*asked, "--command-config", str(place / "alice.properties")]) == 0
        assert run(["topics", "list", "--bootstrap", cluster.kafka_bootstrap]) == 1
        assert "listener KAFKA expects TLS: set security_protocol=SSL" in capsys.readouterr().err


def test_certificates_are_added_and_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "keys"
    assert run(["security", "init", str(place), "--user", "alice"]) == 0
    before = (place / "alice.pem").read_text()
    assert (
        run(["security", "issue", str(place), "--user", "alice", "--user", "bob", "--node", "7=[::1],a.example"]) == 0
    )
    assert (place / "alice.pem").read_text() != before
    assert (place / "bob.pem").exists()
    assert (place / "node-7.pem").exists()
    assert run(["security", "init", str(place), "--user", "carol"]) == 1
    assert "expected an empty directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "one=h"], "expected ID=HOST,…, found 'one=h'"),
        (["--node", "1"], "expected ID=HOST,…, found '1'"),
        (["--node", "1=a,"], "expected ID=HOST,…, found '1=a,'"),
        (["--user", "node-1"], "not the name of a node, found 'node-1'"),
        (["--user", "../x"], "expected letters, digits"),
        (["--user", "a", "--user", "a"], "expected each name once, found a twice"),
        ([], "expected at least one --node or --user"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["security", "issue", str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_an_authority_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["security", "issue", str(tmp_path), "--user", "a"]) == 1
    assert "expected ca-key.pem and ca.pem of an authority" in capsys.readouterr().err


def test_without_the_library_the_command_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tidelog.cli.work.certificates", "tidelog.security.authority"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert run(["security", "init", str(tmp_path / "x"), "--user", "a"]) == 1
    assert "install it with pip install 'tidelog[security]'" in capsys.readouterr().err


def test_a_command_config_takes_the_names_of_kafkas_tools_and_librdkafkas(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\nssl.truststore.type=PEM\nssl.ca.location=/ca\nssl.keystore.location=/me\n")
    assert read_command_config(path) == {"security_protocol": "SSL", "ssl_cafile": "/ca", "ssl_certfile": "/me"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ssl.truststor.location=/x", "line 2: unknown setting 'ssl.truststor.location'; did you mean ssl.truststore."),
        ("ssl.keystore.type=JKS", "line 2: ssl.keystore.type: expected PEM, found 'JKS'"),
        ("security.protocol=SSL", "security.protocol is set already in line 1"),
    ],
)
def test_a_command_config_with_a_fault_names_the_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=SSL\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_command_config(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
