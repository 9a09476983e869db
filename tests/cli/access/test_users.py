"""``tidelog users`` against a running node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog.security.scram import ScramMechanism, is_password_of
from tidelog.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        yield found


@pytest.fixture
def users(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    run = runs_commands(cluster.bootstrap, capfd, monkeypatch)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        return run("users", *arguments, stdin=stdin)

    return call


def has_password(cluster: Cluster, name: str, mechanism: ScramMechanism, password: str) -> bool:
    return is_password_of(mechanism, cluster.node(1).view.image.users[name, mechanism], password)


def test_users_are_made_listed_and_deleted(cluster: Cluster, users: Tidelog, tmp_path: Path) -> None:
    kept = tmp_path / "password"
    kept.write_text("pencil\n")
    assert users("set", "alice", "--password-file", str(kept))[:2] == (0, "alice: password set for SCRAM-SHA-512\n")
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "scram-sha-512", "--iterations", "8192")
    made = as_json(users("set", "bob", *both, "--password-file", "-", "--json", stdin=b"pen\n"))
    assert made == {"user": "bob", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": 8192}
    assert has_password(cluster, "alice", ScramMechanism.SCRAM_SHA_512, "pencil")
    assert has_password(cluster, "bob", ScramMechanism.SCRAM_SHA_256, "pen")
    listed = [
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
        {"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    assert as_json(users("list", "--json")) == listed
    assert as_json(users("list", "bob", "--json")) == listed[1:]
    assert "SCRAM-SHA-512" in users("list")[1]
    assert users("delete", "bob", "--mechanism", "SCRAM-SHA-256")[1] == "bob: 1 password deleted\n"
    assert users("delete", "alice")[0] == 0
    assert as_json(users("delete", "bob", "--json")) == {"user": "bob", "deleted": ["SCRAM-SHA-512"]}
    assert as_json(users("list", "--json")) == []


def test_a_password_is_asked_for(cluster: Cluster, users: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(("from a prompt", "from a prompt"))
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(said))
    code, out, err = users("set", "carol")
    assert code == 0, err
    assert "from a prompt" not in out + err
    assert has_password(cluster, "carol", ScramMechanism.SCRAM_SHA_512, "from a prompt")
    users("delete", "carol")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "nobody"), "RESOURCE_NOT_FOUND"),
        (("list", "nobody", "nobody"), "DUPLICATE_RESOURCE"),
        (("delete", "nobody"), "RESOURCE_NOT_FOUND"),
        (("delete", "nobody", "--mechanism", "SCRAM-SHA-256"), "RESOURCE_NOT_FOUND"),
        (("set", "*", "--password-file", "-"), "UNACCEPTABLE_CREDENTIAL"),
        (("set", "x", "--iterations", "1", "--password-file", "-"), "4096"),
        (("set", "x", "--password-file", "/dev/null"), "expected a password"),
    ],
)
def test_what_makes_no_sense_is_refused(users: Tidelog, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = users(*arguments, stdin=b"x\n")
    assert code in (1, 2)
    assert said in err
