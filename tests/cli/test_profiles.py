"""``tidelog profile``, ``--profile`` and ``tidelog.profile()``."""

from __future__ import annotations

import ast
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidelog
from tidelog.cli.root import run
from tidelog.client.config.profiles import SETTINGS, Profiles, format_profiles, location, parse
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.properties import parse_properties
from tidelog.testing import Cluster

NOBODY = "127.0.0.1:1"
TAKES_NO_KEYS = {
    "parse_bootstrap", "require_listener", "_calibrate_by", "_finder", "_opened", "_require_topic", "_with_admin"
}  # fmt: skip
"""Functions that a command gives the address to, and that need no settings: they connect to nothing, or are commands'
own and call `secured()` themselves."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TIDELOG_HOME", str(tmp_path / "no-local-cluster"))
    for name in ("TIDELOG_PROFILE", "TIDELOG_BOOTSTRAP", "TIDELOG_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as running:
        running.create_topic("seen", 1)
        yield running


def finds(capsys: pytest.CaptureFixture[str], *words: str) -> bool:
    """Whether `topics list` with these words lists the cluster's topic; the alternative is that nobody listens."""
    capsys.readouterr()
    code = run([*words, "topics", "list"])
    out, err = capsys.readouterr()
    assert "seen" in out if code == 0 else "no broker listens at 127.0.0.1:1" in err
    return code == 0


def test_a_command_goes_where_its_profile_says_unless_an_address_is_given(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["profile", "create", "here", "--bootstrap", cluster.bootstrap]) == 0
    assert run(["profile", "create", "nowhere", "--bootstrap", NOBODY, "--use"]) == 0
    assert not finds(capsys)
    assert finds(capsys, "--profile", "here")
    assert run(["topics", "list", "--profile", "here"]) == 0
    assert finds(capsys, "--bootstrap", cluster.bootstrap)
    assert not finds(capsys, "--profile", "here", "--bootstrap", NOBODY)
    monkeypatch.setenv("TIDELOG_PROFILE", "here")
    assert finds(capsys)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", NOBODY)
    assert not finds(capsys)
    assert finds(capsys, "--profile", "here")
    monkeypatch.delenv("TIDELOG_PROFILE")
    assert run(["profile", "use", "here"]) == 0
    assert not finds(capsys)
    monkeypatch.delenv("TIDELOG_BOOTSTRAP")
    assert finds(capsys)


def test_the_sdk_takes_a_profile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tidelog.profile() == {}
    assert run(["profile", "create", "here", "--bootstrap", cluster.bootstrap]) == 0
    assert tidelog.profile() == {}
    monkeypatch.setenv("TIDELOG_PROFILE", "here")
    with tidelog.Admin(**tidelog.profile()) as admin:
        assert [topic.name for topic in admin.list_topics()] == ["seen"]
    with pytest.raises(ConfigError, match=r"expected a profile in .*profiles.toml \(here\), found 'there'"):
        tidelog.profile("there")


def test_a_profile_brings_its_keys_and_an_address_of_another_cluster_does_not_get_them(
    home: Path, capsys: pytest.CaptureFixture[str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = home / "keys"
    monkeypatch.chdir(home)
    assert run(["security", "init", "keys", "--node", "1=127.0.0.1,localhost", "--user", "alice"]) == 0
    settings = {name: found.value for name, found in parse_properties((keys / "node-1.properties").read_text()).items()}
    with Cluster(nodes=1, transport="grpc", config=settings) as secured:
        secure = ["--bootstrap", secured.kafka_bootstrap, "--command-config", "keys/alice.properties"]
        assert run(["profile", "create", "secured", *secure, "--use"]) == 0
        assert run(["topics", "create", "t"]) == 0
        with tidelog.Admin(**tidelog.profile("secured")) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["t"]
        assert finds(capsys, "--bootstrap", cluster.bootstrap)
    assert all(Path(value).is_absolute() for name, value in tidelog.profile().items() if name.endswith("file"))


def test_no_command_forgets_the_settings_that_it_should_connect_with() -> None:
    """Each call that gets the address gets `**secured()` too: it makes a client, or hands both on. `admin_client` adds
    them itself."""
    forgotten, kept = [], 0
    for path in sorted((Path(tidelog.__file__).parent / "cli" / "commands").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or "bootstrap" not in [ast.unparse(given) for given in call.args]:
                continue
            given = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
            if ast.unparse(call.func) == "admin_client" or any("secured()" in each for each in given):
                kept += 1
            elif ast.unparse(call.func) not in TAKES_NO_KEYS:
                forgotten.append(f"{path.name}:{call.lineno}: {ast.unparse(call)}")
    assert not forgotten
    assert kept > 40


def test_profiles_are_listed_replaced_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "create", "a", "-b", "h1"]) == 0
    assert run(["profile", "create", "b", "-b", "h2:9000", "--use"]) == 0
    assert run(["profile", "create", "a", "-b", "h3"]) == 0
    assert "replaced profile a" in capsys.readouterr().out
    assert stat.S_IMODE(location().stat().st_mode) == 0o600
    assert run(["profile", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"default": "b", "profiles": {"a": "h3", "b": "h2:9000"}}
    assert run(["profile", "delete", "b"]) == 0
    assert parse(location().read_text(), Path("/")) == Profiles(None, {"a": {"bootstrap_servers": "h3"}})
    assert run(["profile", "use", "b"]) == 2
    assert "expected a profile in" in capsys.readouterr().err
    assert run(["profile", "use"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a b", "-b", "h"], "expected 1 to 64 letters, digits, - and _ as a profile's name, found 'a b'"),
        (["a", "-b", "h:x"], "expected host:port with a port of 1 to 65535, found 'h:x'"),
    ],
)
def test_nothing_wrong_is_written(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(["profile", "create", *words]) == 2
    assert said in capsys.readouterr().err
    assert not location().exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profiles = 3", "profiles: expected a table, found 3"),
        ("[profile.a]", "unknown setting 'profile'; did you mean profiles?"),
        ("[profiles.a]", "profile a: expected bootstrap_servers, found no settings"),
        ("[profiles.a]\nbootstrap_server = 'h'", "did you mean bootstrap_servers?"),
        ("[profiles.a]\nbootstrap_servers = 9092", "profile a: bootstrap_servers: expected a string, found 9092"),
        ("default = 'b'\n[profiles.a]\nbootstrap_servers = 'h'", "default: expected a profile (a), found 'b'"),
        ("[profiles.a", "at end of document"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(text: str, said: str) -> None:
    location().parent.mkdir(parents=True)
    location().touch(mode=0o600)
    location().write_text(text)
    with pytest.raises(ConfigError) as caught:
        tidelog.profile()
    assert str(location()) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_others_may_read_is_refused() -> None:
    assert run(["profile", "create", "a", "-b", "h", "--use"]) == 0
    location().chmod(0o640)
    with pytest.raises(ConfigError, match=r"expected mode 0600, found 0640; run: chmod 600 .*profiles.toml"):
        tidelog.profile()


NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,10}\Z")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda text: f"/{text}")
OTHERS = st.dictionaries(st.sampled_from(SETTINGS[2:]), TEXTS)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, OTHERS, max_size=4), st.booleans())
def test_what_is_written_is_read_again(tables: dict[str, dict[str, str]], chosen: bool) -> None:
    named = {name: {"bootstrap_servers": "h:1", **table} for name, table in tables.items()}
    profiles = Profiles(next(iter(named), None) if chosen else None, named)
    assert parse(format_profiles(profiles), Path("/x")) == profiles
