"""Many connections at once: idle ones, busy ones, readers that do not read, and clients that never complete a message.

Every phase opens its connections beside those of earlier phases, holds them for a while and measures the node; a
witness produces and consumes throughout.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.chaos.fuzz.fuzz_run import address
from tidelog.chaos.fuzz.loop_probe import GREETING
from tidelog.chaos.fuzz.watched_node import WITNESS_TOPIC, Measure, watched_node
from tidelog.chaos.fuzz.witness import Testimony, Witness
from tidelog.testing.kafka_requests import fetch_request, produce_request

Say = Callable[[str], None]
IDLE: Final = 5_000
BUSY: Final = 1_000
SLOW: Final = 100
HALF_OPEN: Final = 500
HOLD_S: Final = 5.0
BYTES_OF_IDLE_MAX: Final = 24_000
"""Maximum resident memory that an idle connection may cost the node."""
SLOW_GROWTH_BYTES_MAX: Final = 128 * 2**20
"""Maximum memory that all slow readers together may cost: data fetched ahead for them shares the node's budget."""
BUSY_GROWTH_BYTES_MAX: Final = 128 * 2**20
SOCKETS_LEFT_MAX: Final = 4
"""Maximum increase of open sockets from start to end."""
_TOPIC: Final = "fuzz"
_OPENERS: Final = 100
_SETTLE_S: Final = 20.0
_FILLED_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    connections: int
    before: Measure
    after: Measure
    requests: int
    seconds: float

    @property
    def bytes_per_connection(self) -> float:
        return (self.after.memory_bytes - self.before.memory_bytes) / max(1, self.connections)


@dataclass(slots=True)
class Report:
    phases: list[Phase]
    testimony: Testimony
    start: Measure
    end: Measure
    faults: list[str] = field(default_factory=list)


def run(
    directory: Path,
    *,
    idle: int = IDLE,
    busy: int = BUSY,
    slow: int = SLOW,
    half_open: int = HALF_OPEN,
    hold_s: float = HOLD_S,
    say: Say = lambda line: None,
) -> Report:
    """Put a fresh node in ``directory`` through every phase. Raises ``OSError`` if the machine has too few files."""
    _allow_files(idle + busy + slow + half_open + 200)
    settings = {"connections.max.idle.ms": "600000", "max.connections": "100000"}
    with watched_node(directory, settings) as node:
        host, port = address(node.kafka_bootstrap)
        crowd = _Crowd(host, port, node.measure, hold_s, say)
        start = node.measure()
        with Witness(node.kafka_bootstrap, WITNESS_TOPIC) as witness:
            phases = asyncio.run(crowd.run(idle, busy, slow, half_open))
        deadline = time.monotonic() + _SETTLE_S
        sockets_max = start.open.sockets + SOCKETS_LEFT_MAX
        while (end := node.measure()).open.sockets > sockets_max and time.monotonic() < deadline:
            time.sleep(0.1)
        faults = [f"witness: {fault}" for fault in witness.testimony.faults]
        faults += _judged(phases, start, end)
        faults += [f"log: {line}" for line in node.complaints()]
        return Report(phases, witness.testimony, start, end, faults)


class _Crowd:
    def __init__(self, host: str, port: int, measure: Callable[[], Measure], hold_s: float, say: Say) -> None:
        self._host = host
        self._port = port
        self._measure = measure
        self._hold_s = hold_s
        self._say = say
        self._requests = 0
        self._busy = 0
        self._answered = asyncio.Event()
        """Set once there were as many answers as there are busy connections."""

    async def run(self, idle: int, busy: int, slow: int, half_open: int) -> list[Phase]:
        await self._fill()
        self._busy = busy
        phases = []
        open_ones: list[asyncio.StreamWriter] = []
        kinds: Sequence[tuple[str, int, Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]]] = (
            ("idle", idle, lambda reader, writer: writer.write(GREETING)),
            ("half open", half_open, lambda reader, writer: writer.write(GREETING + b"\0\x10\0\0half a frame")),
            ("slow readers", slow, lambda reader, writer: writer.write(fetch_request(_TOPIC, 2**20, 1) * 40)),
            ("busy", busy, lambda reader, writer: asyncio.ensure_future(self._work(reader, writer))),
        )
        for name, count, begin in kinds:
            before, started, self._requests = self._measure(), time.monotonic(), 0
            workers = []
            for reader, writer in await self._open(count, small_buffer=name == "slow readers"):
                worker = begin(reader, writer)
                if isinstance(worker, asyncio.Task):
                    workers.append(worker)
                open_ones.append(writer)
            await asyncio.sleep(self._hold_s)
            if workers:  # on a busy machine the first answers take their time
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._answered.wait(), _SETTLE_S)
            phase = Phase(name, count, before, self._measure(), self._requests, time.monotonic() - started)
            phases.append(phase)
            self._say(
                f"{name:<13} {count:>5} connections: {before.memory_bytes / 1e6:.0f} -> "
                f"{phase.after.memory_bytes / 1e6:.0f} MB ({phase.bytes_per_connection / 1000:.1f} kB each), "
                f"{phase.after.open.total} files, {phase.requests / phase.seconds:,.0f} requests/s"
            )
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        for writer in open_ones:
            writer.transport.abort()
        return phases

    async def _open(self, count: int, *, small_buffer: bool) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        made = []
        for first in range(0, count, _OPENERS):
            made += await asyncio.gather(*(self._one(small_buffer) for _ in range(min(_OPENERS, count - first))))
        return made

    async def _one(self, small_buffer: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        plain = socket.socket()
        plain.setblocking(False)
        if small_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(plain, (self._host, self._port))
        return await asyncio.open_connection(sock=plain, limit=4096 if small_buffer else 2**16)

    async def _work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Produce and fetch alternately, one request after the other."""
        turns = (produce_request(_TOPIC, [b"." * 100], 1), fetch_request(_TOPIC, 4096, 2))
        while True:
            for request in turns:
                writer.write(request)
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                self._requests += 1
                if self._requests >= self._busy:
                    self._answered.set()

    async def _fill(self) -> None:
        """Send requests with answers that are large enough to leave unread."""
        reader, writer = await self._one(small_buffer=False)
        request = produce_request(_TOPIC, [b"." * (256 * 1024)], 1)
        for _ in range(_FILLED_BYTES // (256 * 1024)):
            writer.write(request)
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
        writer.transport.abort()


def _judged(phases: Sequence[Phase], start: Measure, end: Measure) -> list[str]:
    faults = []
    for phase in phases:
        growth = phase.after.memory_bytes - phase.before.memory_bytes
        most = {"slow readers": SLOW_GROWTH_BYTES_MAX, "busy": BUSY_GROWTH_BYTES_MAX}.get(
            phase.name, phase.connections * BYTES_OF_IDLE_MAX + 8 * 2**20
        )
        if growth > most:
            faults.append(f"{phase.name}: {growth / 1e6:.0f} MB more, expected at most {most / 1e6:.0f} MB")
        if phase.name == "busy" and phase.requests < phase.connections:
            faults.append(f"busy: {phase.requests} requests were answered on {phase.connections} connections")
    if end.open.sockets > start.open.sockets + SOCKETS_LEFT_MAX:
        faults.append(f"open sockets: {start.open.sockets} at the start, {end.open.sockets} at the end")
    return faults


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files, which the node inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise OSError(f"expected a limit of at least {count} open files (ulimit -Hn), found {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
