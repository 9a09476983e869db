"""A standalone Spark cluster on this machine: a master and workers as processes, on loopback addresses.

Each driver gets an executor on each worker. Workers have their own addresses (127.0.0.1, 127.0.0.2; so Linux only),
since Spark runs a slow task a second time only on another host. Executors are no processes of the driver: workers start
them, and they outlive a killed driver until they notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidelog.cli.local.watch import wait_until
from tidelog.spark_connector import runtime
from tidelog.testing.ports import free_ports

WORKERS: Final = 2
START_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 20.0
_CORES: Final = 16
"""Cores that each worker announces: each driver takes one, and killed drivers return theirs late."""
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """A context manager that runs the cluster. Logs and the workers' directories are in ``directory``; ``environ``:
    additions to the environment of master and workers, and so of executors."""

    def __init__(self, directory: Path, workers: int = WORKERS, environ: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._workers = workers
        self._environ = dict(environ or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> SparkCluster:
        """Start the cluster. Raises :class:`~tidelog.cli.local.watch.WatchFailed` if it does not start in time,
        ``NoJava``."""
        runtime.prepare()
        self._directory.mkdir(parents=True, exist_ok=True)
        port = free_ports(1)[0]
        self.url = f"spark://127.0.0.1:{port}"
        try:
            master = self._start("Master", "master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
            self._wait_for(master, "starting", "I have been elected leader", 1)
            for number in range(self._workers):
                name = f"worker-{number + 1}"
                has = ("--cores", str(_CORES), "--memory", "16g", "--work-dir", str(self._directory / f"{name}.d"))
                self._start("Worker", name, "--host", f"127.0.0.{number + 1}", "--webui-port", "0", *has, self.url)
            self._wait_for(master, "all workers", "Registering worker", self._workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop master and workers, and with them the executors."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()

    def _start(self, role: str, name: str, *arguments: str) -> Path:
        log = self._directory / f"{name}.log"
        program = [str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class")]
        command: Sequence[str] = [*program, f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
        environ = {
            **os.environ,
            "SPARK_LOCAL_IP": arguments[1],
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            **self._environ,
        }
        with log.open("ab") as out:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                                 env=environ)
            )  # fmt: skip
        return log

    def _wait_for(self, log: Path, what: str, line: str, times: int) -> None:
        wait_until(
            f"a standalone cluster of Spark, {what} (see {self._directory})",
            lambda: log.read_text(errors="replace").count(line) >= times,
            START_TIMEOUT_S,
        )
