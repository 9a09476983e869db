"""``tidelog login``, and profiles whose password a program tells."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.cli.in_process import Tidelog, runs_commands
from tidelog.client.config.profiles import location, parse
from tidelog.model.settings.config_def import ConfigError
from tidelog.testing import Cluster

SECRET = "alice's own words"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, security="scram") as running:
        running.add_user("alice", SECRET)
        yield running


@pytest.fixture
def run(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tidelog:
    call = runs_commands(cluster.bootstrap, capfd, monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TIDELOG_HOME", str(tmp_path / "no-local-cluster"))
    for name in ("TIDELOG_PROFILE", "TIDELOG_BOOTSTRAP", "TIDELOG_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    location().parent.mkdir(mode=0o700)
    location().touch(mode=0o600)
    location().write_text(
        f'default = "here"\n[profiles.here]\nbootstrap_servers = {json.dumps(cluster.bootstrap)}\n'
        'security_protocol = "SASL_PLAINTEXT"\n[profiles.open]\nbootstrap_servers = "127.0.0.1:1"\n'
    )
    return call


def test_a_password_that_is_right_is_kept_and_another_changes_nothing(run: Tidelog) -> None:
    before = location().read_text()
    code, _, err = run("login", "--user", "alice", "--password-file", "-", stdin=b"wrong\n")
    assert code != 0
    assert "profile here is as it was" in err
    assert "wrong" not in err
    assert location().read_text() == before
    code, out, err = run("login", "--user", "alice", "--password-file", "-", stdin=SECRET.encode() + b"\n")
    assert code == 0, err
    assert SECRET not in out + err
    assert stat.S_IMODE(location().stat().st_mode) == 0o600
    assert tidelog.profile()["sasl_password"] == SECRET
    assert run("topics", "list")[0] == 0, "the profile is enough"


def test_a_program_may_tell_the_password(run: Tidelog, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text(SECRET + "\nand notes\n")
    command = f"{sys.executable} -c 'print(open(\"{kept}\").read())'"
    code, _, err = run(
        "login", "here", "--user", "alice", "--mechanism", "scram-sha-512", "--password-command", command
    )
    assert code == 0, err
    assert SECRET not in location().read_text()
    assert tidelog.profile("here") | {"sasl_password": ""} == {
        "bootstrap_servers": tidelog.profile("here")["bootstrap_servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": "alice",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_password": "",
    }
    assert run("topics", "list", "--profile", "here")[0] == 0
    kept.unlink()
    code, _, err = run("topics", "list")
    assert code != 0
    assert "sasl_password_command: " in err
    assert "ended with code 1" in err
    assert run("profile", "use", "open")[0] == 0, "nothing is run where no password is needed"


def test_what_is_missing_is_said(run: Tidelog) -> None:
    assert "expected --user, as it has no sasl_username" in run("login")[2]
    assert "expected security_protocol=SASL_SSL" in run("login", "open", "--user", "alice")[2]
    both = ("--user", "alice", "--password-file", "-", "--password-command", "true")
    assert "found both" in run("login", *both)[2]
    assert "cannot be run: No such file" in run("login", "--user", "alice", "--password-command", "/no/such")[2]
    assert "to print a password" in run("login", "--user", "alice", "--password-command", "true")[2]


def test_a_profile_has_a_password_or_a_program() -> None:
    text = '[profiles.a]\nbootstrap_servers = "h:1"\nsasl_password = "x"\nsasl_password_command = "y"\n'
    with pytest.raises(ConfigError, match="expected sasl_password or sasl_password_command, found both"):
        parse(text, Path("/"))
