"""The toxiproxy server as a child process, driven over its HTTP API by toxiproxy-python.

That package stores the server's address in one class for the whole process and has no time-outs; we therefore call its
``APIConsumer`` directly, with a time-out each. One server per process at a time.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toxiproxy import Toxiproxy
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from tidelog.chaos.laboratory.links.toxiproxy_build import VERSION
from tidelog.cli.failure import CommandFailed
from tidelog.proto.transport.network import Address
from tidelog.testing import ports

START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 10.0
"""A change of a link waits in the server for data in transit; behind a stopped process that may take forever."""
UPSTREAM: Final = "upstream"
"""From the dialler to the target."""
DOWNSTREAM: Final = "downstream"
_POLL_S: Final = 0.02


class ProxyTrouble(Exception):
    """The server refused something or did not answer in time."""


class ProxyServer:
    """One toxiproxy server on a port of the loopback address. Its output goes to ``log_path``."""

    def __init__(self, program: Path, log_path: Path, rng: random.Random, port: int | None = None) -> None:
        self.port = port if port is not None else ports.free_ports(1, rng)[0]
        self._program = program
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._seed = rng.randrange(1 << 62)

    @property
    def pid(self) -> int | None:
        """Return its process id, ``None`` while it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it and wait until it answers. Raises :class:`CommandFailed`."""
        if ports.taken([self.port]):
            raise CommandFailed(
                f"toxiproxy: port {self.port} of {ports.LOOPBACK} is taken by another program; stop that one"
            )
        command = [
            sys.executable,
            "-P",
            "-m",
            "tidelog.chaos.laboratory.processes.parent_death",
            str(os.getpid()),
            str(self._program),
        ]
        command += ["-host", ports.LOOPBACK, "-port", str(self.port), "-seed", str(self._seed)]
        with self._log_path.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "LOG_LEVEL": "warn"},
                start_new_session=True,
            )
        Toxiproxy().update_api_consumer(ports.LOOPBACK, self.port)
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := self._version()) is None:
            if self.pid is None or time.monotonic() > deadline:
                self.stop()
                said_last = self._log_path.read_text(errors="replace").strip().splitlines()[-1:]
                raise CommandFailed(f"toxiproxy does not answer on port {self.port}: {' '.join(said_last)}")
            time.sleep(_POLL_S)
        if found != VERSION:
            self.stop()
            raise CommandFailed(f"toxiproxy on port {self.port}: expected version {VERSION}, found {found}")

    def stop(self) -> None:
        """End it with all its connections; waits until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- Proxies -------------------------------------------------------------------------------------

    def create(self, name: str, listen: Address, upstream: Address) -> None:
        """Make a proxy. Like the methods below, it raises :class:`ProxyTrouble`."""
        self._ask("POST", "/proxies", {"name": name, "listen": str(listen), "upstream": str(upstream), "enabled": True})

    def add_toxic(
        self, proxy: str, name: str, kind: str, stream: str, attributes: Mapping[str, int], toxicity: float = 1.0
    ) -> None:
        """Add a toxic to one direction of a proxy; on a share ``toxicity`` of its connections."""
        toxic = {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": dict(attributes)}
        self._ask("POST", f"/proxies/{proxy}/toxics", toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic; do nothing if it is not there."""
        with contextlib.suppress(NotFound):
            self._ask("DELETE", f"/proxies/{proxy}/toxics/{name}")

    def enable(self, proxy: str, enabled: bool) -> None:
        """Enable or disable a proxy. Disabled, it cuts connections and refuses new ones."""
        self._ask("POST", f"/proxies/{proxy}", {"enabled": enabled})

    def proxies(self) -> dict[str, Any]:
        """Return every proxy with its toxics, as the server reports them."""
        found: dict[str, Any] = self._ask("GET", "/proxies").json()
        return found

    def reset(self) -> None:
        """Remove all toxics and enable all proxies."""
        self._ask("POST", "/reset")

    # --- Inside --------------------------------------------------------------------------------------

    def _version(self) -> str | None:
        try:
            return str(APIConsumer.get("/version", timeout=REQUEST_TIMEOUT_S).json()["version"])
        except (OSError, ValueError, KeyError):
            return None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            if method == "GET":
                answer = APIConsumer.get(path, timeout=REQUEST_TIMEOUT_S)
            elif method == "DELETE":
                answer = APIConsumer.delete(path, timeout=REQUEST_TIMEOUT_S)
            else:
                answer = APIConsumer.post(path, json=body, timeout=REQUEST_TIMEOUT_S)
        except (ProxyExists, InvalidToxic) as refused:
            raise ProxyTrouble(f"toxiproxy refused {method} {path} {body}: {refused}") from None
        except OSError as trouble:  # the exceptions of the package's own transport are OSErrors
            raise ProxyTrouble(f"toxiproxy: {method} {path}: {trouble}") from None
        if answer.status_code >= 400:
            raise ProxyTrouble(f"toxiproxy refused {method} {path} {body}: {answer.status_code} {answer.text.strip()}")
        return answer
