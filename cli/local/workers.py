"""``tidelog server --workers N``: the nodes of one machine, each a process with its own core, under one supervisor.

Worker 0 is the node of the configuration. The others are brokers: their settings are the same, but for the node id,
the ports and the directories, which :func:`worker_settings` derives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.broker.node.identity import WORKERS_DIRECTORY
from tidelog.cli.local.machine_page import merged
from tidelog.cli.local.worker_channel import MACHINE, METRICS, READY, Channel, ChannelClosed
from tidelog.model.ids import WORKER_ID_STEP
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.listeners import Listener, format_items, parse_listeners, parse_optional_listener
from tidelog.model.settings.node.access_settings import MACHINE_ID, NODE_ID

if TYPE_CHECKING:
    from tidelog.broker.node.http import Page
    from tidelog.broker.node.node import Node
    from tidelog.model.settings.broker_config import NodeConfig

log = logging.getLogger(__name__)

RESTART_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""A worker that ran for so long is started again immediately."""
PAGE_S: Final = 5.0
"""Time for a worker to make its metrics page; without it, the machine's page goes out."""
MACHINE_METRICS: Final = "/machine/metrics"
_LOOK_S: Final = 0.05


def worker_settings(config: NodeConfig, worker: int, port_step: int) -> dict[str, str]:
    """Return what differs for this worker, from 1, from the machine's configuration. Raises :class:`ConfigError`."""
    step = worker * port_step
    directories = [str(Path(path) / WORKERS_DIRECTORY / str(worker)) for path in config.directories]
    changed = {
        "node.id": str(config.node_id + worker * WORKER_ID_STEP),
        "process.roles": "broker",
        "listeners": _moved(config.broker_listeners, step, "listeners"),
        "controller.quorum.voters": format_items(config.voters),
        "log.dirs": ",".join(directories),
        "metadata.log.dir": directories[0],
    }
    if config.advertised_listeners:
        names = {found.name for found in config.broker_listeners}
        own = tuple(found for found in config.advertised_listeners if found.name in names)
        changed["advertised.listeners"] = _moved(own, step, "advertised.listeners")
    if config.http_listener is not None:
        changed["http.listener"] = _moved((config.http_listener,), step, "http.listener")
    if config.replication_transport_port:
        changed["replication.transport.port"] = str(
            _port(config.replication_transport_port + step, "replication.transport.port")
        )
    if config.audit_log_path:
        changed["audit.log.path"] = f"{config.audit_log_path}.{changed['node.id']}"
    return changed


def _moved(listeners: Sequence[Listener], step: int, setting: str) -> str:
    return format_items(
        tuple(one._replace(port=_port(one.port + step, setting) if one.port else 0) for one in listeners)
    )


def _port(port: int, setting: str) -> int:
    if port > 65_535:
        raise ConfigError(
            f"{setting}: expected ports of at most 65535 for every worker, found {port}: choose lower ones, or a "
            "smaller --worker-port-step"
        )
    return port


def check_workers(config: NodeConfig, workers: int, port_step: int) -> list[dict[str, str]]:
    """Return the settings that differ of each worker from 1. Raises :class:`ConfigError` for a configuration that
    several workers cannot share."""
    if not config.is_broker:
        raise ConfigError("process.roles: expected broker with --workers, found controller, which needs one process")
    if config.node_id >= WORKER_ID_STEP:
        raise ConfigError(
            f"node.id: expected less than {WORKER_ID_STEP} with --workers, as {WORKER_ID_STEP} and more are the other "
            f"workers' ids, found {config.node_id}"
        )
    if any(not voter.port for voter in config.voters):
        raise ConfigError("listeners: expected a port for CONTROLLER with --workers, found 0, which no worker can know")
    if config.node_principal_pattern and MACHINE_ID not in config.node_principal_pattern:
        raise ConfigError(
            f"node.principal.pattern: expected {MACHINE_ID} instead of {NODE_ID} with --workers, on every node, as the "
            f"workers of a machine share its certificate, found {config.node_principal_pattern}"
        )
    made = [worker_settings(config, worker, port_step) for worker in range(workers)]
    taken = {found.port: "worker 0" for found in config.controller_listeners}
    for who, settings in enumerate(made):
        for port in _ports(settings):
            if port in taken:
                raise ConfigError(
                    f"listeners: expected ports that stay apart when each worker adds {port_step} to them, found "
                    f"{port} for {taken[port]} and for worker {who}: choose another --worker-port-step"
                )
            taken[port] = f"worker {who}"
    return made[1:]


def _ports(settings: Mapping[str, str]) -> list[int]:
    listeners = parse_listeners(settings["listeners"])
    http = parse_optional_listener(settings.get("http.listener", ""))
    found = {one.port for one in (*listeners, *((http,) if http else ()))}
    return sorted((found | {int(settings.get("replication.transport.port", 0))}) - {0})


@dataclass
class Worker:
    """One process. ``command`` starts it; it gets ``--supervised FD`` beside."""

    node_id: int
    command: Callable[[], list[str]]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for good once it has served."""
    machine_page: Callable[[], Awaitable[bytes]] | None = None
    """Makes the page that :data:`MACHINE` asks for; set by the supervisor."""
    _channel: Channel | None = None
    _serves: bool = False
    """Whether its present process has said so."""
    _process: asyncio.subprocess.Process | None = None
    _wanted: signal.Signals | None = None

    async def run(self) -> int:
        """Run the process to its end and return its exit code, negative for a signal. It ends by itself when this
        process is gone, because its end of the socket pair then reads nothing more."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self.command(), "--supervised", str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            if self._wanted is not None:  # it came while the process was being started
                process.send_signal(self._wanted)
            self._channel = channel = Channel(ours, self._answer)
            self._serves = False
            await channel.open()
            await channel.run()
            return await process.wait()

    async def _answer(self, question: bytes) -> bytes:
        if question == READY:
            self._serves = True
            self.ready.set()
        elif question == MACHINE and self.machine_page is not None:
            return await self.machine_page()
        return b""

    async def metrics(self) -> bytes | None:
        """Return its metrics page; ``None``: it does not answer."""
        if self._channel is None or not self._serves:
            return None
        try:
            return await self._channel.ask(METRICS, PAGE_S)
        except (ChannelClosed, TimeoutError):
            return None

    def signal(self, number: signal.Signals) -> None:
        self._wanted = number
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class Supervisor:
    """Starts the workers, starts again those that die, and stops all of them.

    Worker 0 starts first, because it may format the directories of a new cluster; ``formatted`` tells when. It stops
    last: it may be the controller to which the others hand over.
    """

    def __init__(self, workers: Sequence[Worker], formatted: Callable[[], bool], *, restart_s: float = 1.0) -> None:
        self._workers = workers
        self._formatted = formatted
        self._restart_s = restart_s
        self._stopping = asyncio.Event()
        self._code = 0
        for one in workers:
            one.machine_page = self._page

    async def run(self) -> int:
        """Return 0 after a signal; 1 if a worker ended before it was ready for the first time, or did not stop well."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal)
        first, *others = self._workers
        kept = {first.node_id: asyncio.create_task(self._keep(first))}
        while not (self._stopping.is_set() or self._formatted() or kept[first.node_id].done()):
            await asyncio.wait({kept[first.node_id]}, timeout=_LOOK_S)
        if not self._stopping.is_set():
            kept |= {one.node_id: asyncio.create_task(self._keep(one)) for one in others}
        saying = asyncio.create_task(self._say_ready())
        await self._stopping.wait()
        saying.cancel()
        for group in (others, [first]):
            for one in group:
                one.signal(signal.SIGTERM)
            await asyncio.gather(*(kept[one.node_id] for one in group if one.node_id in kept))
        return self._code

    def on_signal(self) -> None:
        """Stop the workers in good order; at the second call, kill them."""
        if self._stopping.is_set():
            log.warning("second signal: stopping the workers immediately")
            for one in self._workers:
                one.signal(signal.SIGKILL)
        self._stopping.set()

    async def _page(self) -> bytes:
        pages = await asyncio.gather(*(one.metrics() for one in self._workers))
        return merged({one.node_id: page for one, page in zip(self._workers, pages, strict=True)})

    async def _say_ready(self) -> None:
        for one in self._workers:
            await one.ready.wait()
        log.info("all %d workers serve: nodes %s", len(self._workers), ", ".join(str(w.node_id) for w in self._workers))

    async def _keep(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._restart_s
        while not self._stopping.is_set():
            started = loop.time()
            code = await worker.run()
            if self._stopping.is_set():
                self._code = self._code or int(code != 0)
                break
            if not worker.ready.is_set():
                log.error("node %d ended with exit code %d before it was ready: stopping", worker.node_id, code)
                self._code = 1
                self._stopping.set()
                break
            wait_s = 0.0 if loop.time() - started >= STEADY_S else min(max(wait_s, self._restart_s), RESTART_MAX_S)
            log.error("node %d ended with exit code %d: starting it again in %.0f s", worker.node_id, code, wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            wait_s *= 2


def supervise(
    config: NodeConfig,
    workers: int,
    port_step: int,
    settings: Mapping[str, str],
    arguments: Callable[[int], list[str]],
    cluster_id: str | None,
) -> int:
    """Run the workers until SIGTERM or SIGINT and return the exit code. ``settings`` override those of the file;
    ``arguments``: the other options of ``tidelog server`` for the worker of this number.

    Raises :class:`ConfigError`.
    """
    from tidelog.storage.disk.files import SystemFiles
    from tidelog.storage.disk.format import read_meta

    differing = check_workers(config, workers, port_step)
    files = SystemFiles()

    def found_id() -> str | None:
        with contextlib.suppress(OSError):
            meta = read_meta(files, config.directories[0])
            return None if meta is None else meta.cluster_id
        return None

    def command(worker: int, own: Mapping[str, str]) -> list[str]:
        made = [sys.executable, "-m", "tidelog.cli.main", "server", *arguments(worker)]
        for name, value in {**settings, **own}.items():
            made += ["--set", f"{name}={value}"]
        belongs = cluster_id or (found_id() if worker else None)
        return made if belongs is None else [*made, "--cluster-id", belongs]

    all_settings: list[Mapping[str, str]] = [{"node.id": str(config.node_id)}, *differing]
    made = [
        Worker(config.node_id + number * WORKER_ID_STEP, partial(command, number, own))
        for number, own in enumerate(all_settings)
    ]

    async def run() -> int:
        return await Supervisor(made, lambda: found_id() is not None).run()

    return asyncio.run(run())


async def report_to(fd: int, node: Node) -> None:
    """Tell the supervisor that this worker is ready, exchange metrics with it, and stop in an orderly way once it is
    gone."""

    from tidelog.broker.node.http import Page, text_page

    async def answer(question: bytes) -> bytes:
        return (await node.metrics()).body if question == METRICS else b""

    channel = Channel(socket.socket(fileno=fd), answer)

    async def machine() -> Page:
        try:
            body = await channel.ask(MACHINE, 2 * PAGE_S)
        except (ChannelClosed, TimeoutError) as trouble:
            return text_page(503, f"expected the supervisor to answer, found: {trouble or 'silence'}\n")
        return Page(200, (await node.metrics()).content_type, body)

    await channel.open()
    running = asyncio.create_task(channel.run(), name="supervisor")
    node.add_page(MACHINE_METRICS, machine)
    with contextlib.suppress(ChannelClosed, TimeoutError):
        await channel.ask(READY, PAGE_S)
    await running
    log.warning("the supervisor is gone: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
