"""Drivers from the kill matrix's side: started ahead, given queries, killed, frozen, thawed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidelog.chaos.spark_kills.processes import Process, executor_of, members, owner_of, signal_all, unread_bytes
from tidelog.chaos.spark_kills.query import Query
from tidelog.cli.local.watch import WatchFailed, wait_until

START_TIMEOUT_S: Final = 90.0
TOLD_TIMEOUT_S: Final = 10.0
END_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.005


class Driver:
    """One Spark in its own session of processes. Its output goes to ``<directory>/<name>.log``. ``launcher``: a program
    and its arguments that becomes the driver; ``master``: the cluster that it runs on, by default a Spark within the
    one process."""

    def __init__(self, directory: Path, name: str, launcher: Sequence[str] = (), master: str = "") -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._query: Query | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self.error: str | None = None
        """The error that ended the last query; None if it reached its end."""
        self.dead = False
        """It was killed."""
        self._gone = False
        self.frozen: list[int] = []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, sys.executable, "-P", "-m", "tidelog.chaos.spark_kills.driver", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._reader = threading.Thread(target=self._read, name=f"{name} events", daemon=True)
        self._reader.start()

    # --- queries ------------------------------------------------------------------------------------

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it is ready. Raises :class:`WatchFailed` if Spark does not start."""
        if not self._ready.wait(timeout_s) or self._gone:
            raise WatchFailed(f"{self.name}: expected Spark to start within {timeout_s:g} s, see {self.log}")

    def run(self, query: Query) -> None:
        """Begin a query; it runs on its own."""
        assert self._process.stdin is not None
        if self._gone:
            raise WatchFailed(f"{self.name} ended by itself, see {self.log}")
        self._query = query
        self.error = None
        self._ended.clear()
        self._process.stdin.write((query.to_json() + "\n").encode())
        self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        """Return whether its query has ended in any way, or it is dead."""
        return self._ended.is_set()

    def is_logged(self, batch: int) -> bool:
        """Return whether Spark's commit log has this batch of its query."""
        return self._query is not None and (Path(self._query.checkpoint) / "commits" / str(batch)).exists()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event, text = json.loads(line)
            if event == "ready":
                self._ready.set()
            else:
                self.error = text
                self._ended.set()
        self._gone = True
        if not self.dead:
            self.error = f"{self.name} ended by itself, see {self.log}"
        self._ready.set()
        self._ended.set()

    # --- faults -------------------------------------------------------------------------------------

    def owns(self, port: int) -> int | None:
        """Return the process of this driver that owns the end of a connection with this port."""
        return owner_of(port, self._process.pid)

    def kill(self) -> None:
        """Kill -9 the JVM and the program that drives it. Python workers notice, and end; executors too."""
        self.dead = True
        signal_all(self._pids(lambda one: not one.is_daemon and not one.is_executor), signal.SIGKILL)

    def kill_executor(self, pid: int) -> bool:
        """Kill -9 the executor that has this Python worker; return False if there is none."""
        found = executor_of(pid, self._process.pid)
        signal_all([] if found is None else [found], signal.SIGKILL)
        return found is not None

    def kill_worker(self, pid: int) -> None:
        """Kill -9 one process."""
        signal_all([pid], signal.SIGKILL)

    def stop_jvm(self) -> None:
        """Stop the JVM only."""
        signal_all(self._pids(lambda one: one.is_jvm), signal.SIGSTOP)

    async def kill_once_told(self, fault: Callable[[str], None]) -> None:
        """With the JVM stopped, wait until data for it has arrived that it cannot read, and kill everything."""
        jvm = self._pids(lambda one: one.is_jvm)
        before = sum(map(unread_bytes, jvm))
        deadline = time.monotonic() + TOLD_TIMEOUT_S
        while sum(map(unread_bytes, jvm)) <= before:
            if time.monotonic() > deadline:
                fault(f"{self.name}: nobody told its JVM anything within {TOLD_TIMEOUT_S:g} s")
                break
            await asyncio.sleep(_POLL_S)
        self.kill()

    def freeze(self) -> None:
        """Send SIGSTOP to every process."""
        self.frozen = self._pids(lambda one: True)
        signal_all(self.frozen, signal.SIGSTOP)

    def orphan(self, pid: int) -> None:
        """Stop one worker, and kill the driver. The daemon, which would end the worker, is killed first: even before
        the worker is stopped, or the kernel would send SIGHUP and resume it, as a member of an orphaned process
        group."""
        daemons = [one.parent for one in members(self._process.pid) if one.pid == pid]
        signal_all(daemons, signal.SIGKILL)
        wait_until("the daemon of a worker to be gone", lambda: not self._pids(lambda one: one.pid in daemons), 1.0)
        self.frozen = [pid]
        signal_all(self.frozen, signal.SIGSTOP)
        self.kill()

    def thaw(self) -> None:
        """Send SIGCONT to the frozen processes."""
        signal_all(self.frozen, signal.SIGCONT)
        self.frozen = []

    def end(self) -> None:
        """Kill -9 everything that is left, and wait until it is gone."""
        self.dead = True
        signal_all(self._pids(lambda one: True), signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        wait_until(f"processes of {self.name} to be gone", self._all_gone, END_TIMEOUT_S)

    def _all_gone(self) -> bool:
        """Return whether all are gone. A worker of the cluster may have replaced an executor that was killed."""
        left = self._pids(lambda one: True)
        signal_all(left, signal.SIGKILL)
        return not left

    def _pids(self, which: Callable[[Process], bool]) -> list[int]:
        return [one.pid for one in members(self._process.pid) if which(one)]


class DriverPool:
    """Drivers that are running. The pool starts ``ahead`` more than are in use, since a start takes as long as a case,
    but at most ``most`` in all. ``patience`` multiplies time bounds; ``master``: as in :class:`Driver`."""

    def __init__(self, directory: Path, *, most: int, ahead: int = 1, patience: float = 1.0, master: str = "") -> None:
        self._directory = directory
        self._most = most
        self._ahead = ahead
        self._patience = patience
        self._master = master
        self._idle: list[Driver] = []
        self._all: list[Driver] = []
        self.started = 0

    def prepare(self) -> None:
        """Start the spare drivers."""
        while len(self._idle) < self._ahead and self.started < self._most:
            self._idle.append(self._start())

    def take(self) -> Driver:
        """Return a driver that is ready."""
        driver = self._idle.pop(0) if self._idle else self._start()
        driver.wait_ready(START_TIMEOUT_S * self._patience)
        self.prepare()
        return driver

    def give_back(self, driver: Driver) -> None:
        """Return an idle driver to the pool: another case may use it, if it is alive."""
        if driver.dead:
            driver.end()
            self._all.remove(driver)
        else:
            self._idle.insert(0, driver)

    def close(self) -> None:
        for driver in self._all:
            driver.end()
        self._all.clear()
        self._idle.clear()

    def _start(self) -> Driver:
        self.started += 1
        driver = Driver(self._directory, f"driver-{self.started}", master=self._master)
        self._all.append(driver)
        return driver
