"""One run of fuzzing against its own node: inputs at the port, a witness beside them, measurements, a verdict."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from tidelog.chaos.fuzz.captured import captured_requests
from tidelog.chaos.fuzz.frames import API_VERSIONS, OF_LOGINS, READ_BY_HAND, FrameSource
from tidelog.chaos.fuzz.fuzzing import CONNECTIONS, Tally, fuzz
from tidelog.chaos.fuzz.loop_probe import LoopProbe
from tidelog.chaos.fuzz.open_files import OpenFiles
from tidelog.chaos.fuzz.watched_node import WITNESS_TOPIC, Measure, WatchedNode, watched_node
from tidelog.chaos.fuzz.witness import Testimony, Witness
from tidelog.testing.kafka_requests import fetch_request

if TYPE_CHECKING:
    from tidelog import Admin

Say = Callable[[str], None]
GROWTH_BYTES_MAX: Final = 96 * 2**20
"""Maximum growth of resident memory between the end of the warm-up and the end of the run."""
SOCKETS_GROWTH_MAX: Final = 4
"""Maximum increase of open sockets."""
FILES_GROWTH_MAX: Final = 4
"""Maximum increase of open files that were deleted, or that are not the node's own. The node may hold any number of its
own files, that is segments and indexes of topics that frames created."""
HOLD_S_MAX: Final = 2.0
"""Maximum time that the loop may be held, in processor time. The widest accepted request needs some 0.3 s, and several
connections may send one at the same time."""
LOGIN_HOLD_S_MAX: Final = 0.2
"""The same before a login, where an input may take 5 ms (:mod:`tidelog.chaos.fuzz.logins`), for some 32 connections."""
SESSIONS: Final = 400
"""Number of fetch sessions that are opened for the inputs to use."""
WARM_INPUTS_MAX: Final = 250_000
_SESSION_ID: Final = struct.Struct(">i")
_SESSION_ID_AT: Final = 4 + 1 + 4 + 2
"""Position after correlation id, tagged fields of the header, throttle time and error code."""
_LOOK_S: Final = 5.0
_SETTLE_S: Final = 10.0
_HARMLESS: Final = {
    "validate_only": True, "allow_auto_topic_creation": False, "replica_id": -1, "acks": 1,
    "max_bytes": 4096, "partition_max_bytes": 4096,
}  # fmt: skip
_OWN_TOPICS: Final = frozenset({"fuzz", "fuzz-2", WITNESS_TOPIC})


@dataclass(slots=True)
class Report:
    """The findings of a run; ``faults`` is empty if the node held."""

    seed: int
    tally: Tally
    testimony: Testimony
    seconds: float
    before: Measure
    warm: Measure
    after: Measure
    memory_peak_bytes: int
    longest_hold_s: float
    """Maximum processor time that the event loop spent on others while one connection waited for its turn."""
    faults: list[str] = field(default_factory=list)


def run(
    directory: Path,
    inputs: int,
    seed: int,
    *,
    connections: int = CONNECTIONS,
    first_batch: int = 0,
    say: Say = lambda line: None,
    login: bool = False,
) -> Report:
    """Fuzz a fresh node in the empty directory ``directory``; ``login``: at a listener that requires one. With an even
    seed, the clients are denied some operations."""
    from tidelog import Admin

    denies = not login and seed % 2 == 0
    with watched_node(directory, with_login=login, denies=denies) as node, Admin(node.cluster.bootstrap) as admin:
        before = node.measure()
        host, port = address(node.kafka_bootstrap)
        target, favoured = (node.login_port, OF_LOGINS) if login else (port, READ_BY_HAND)
        source = FrameSource(
            seed,
            served_versions(host, target),
            captured=captured_requests(),
            harmless=_HARMLESS,
            favoured=favoured,
            sessions=() if login else fetch_sessions(host, port, SESSIONS),
        )
        watch = _Watch(node, admin, inputs, say)
        tally = Tally()
        started = time.monotonic()
        trouble: BaseException | None = None
        with Witness(node.kafka_bootstrap, WITNESS_TOPIC) as witness, LoopProbe(host, port, node.pid) as probe:
            try:
                uvloop.run(_fuzz_and_watch(host, target, source, inputs, connections, first_batch, tally, watch))
            except* Exception as group:
                trouble = group
        seconds = time.monotonic() - started
        faults = [] if trouble is None else [_first(trouble)]
        faults += [f"witness: {fault}" for fault in witness.testimony.faults]
        after = _settled(node, before)
        faults += _judged(before, watch.warm or after, after)
        most_s = LOGIN_HOLD_S_MAX if login else HOLD_S_MAX
        if probe.longest_s > most_s:
            faults.append(f"event loop: held for {probe.longest_s:.2f} s, expected at most {most_s:g}")
        faults += [f"log: {line}" for line in node.complaints()]
        return Report(
            seed=seed,
            tally=tally,
            testimony=witness.testimony,
            seconds=seconds,
            before=before,
            warm=watch.warm or after,
            after=after,
            memory_peak_bytes=max(watch.memory_peak_bytes, after.memory_bytes),
            longest_hold_s=probe.longest_s,
            faults=faults,
        )


def address(bootstrap: str) -> tuple[str, int]:
    """Return the first ``host:port`` of a list."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    return host, int(port)


def served_versions(host: str, port: int) -> dict[int, tuple[int, int]]:
    """Ask a port for its API keys and versions (ApiVersions, version 0)."""
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1))
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        body = stream.read(size)
    _, error, count = struct.unpack_from(">ihi", body)
    if error:
        raise RuntimeError(f"expected the served versions, found error {error}")
    return {key: (least, most) for key, least, most in struct.iter_unpack(">hhh", body[10 : 10 + 6 * count])}


def fetch_sessions(host: str, port: int, count: int) -> list[int]:
    """Open this many fetch sessions on the witness's topic, and return their ids."""
    found: list[int] = []
    with socket.create_connection((host, port), timeout=10) as connection:
        stream = connection.makefile("rb")
        for number in range(count):
            connection.sendall(fetch_request(WITNESS_TOPIC, 4096, number, session_epoch=0))
            (size,) = struct.unpack(">i", stream.read(4))
            (session_id,) = _SESSION_ID.unpack_from(stream.read(size), _SESSION_ID_AT)
            found.append(session_id)
    return found


class _Watch:
    """Examines the node now and then, and removes the effects of well-formed requests."""

    def __init__(self, node: WatchedNode, admin: Admin, inputs: int, say: Say) -> None:
        self._node = node
        self._admin = admin
        self._warm_at = min(WARM_INPUTS_MAX, inputs // 5)
        self._say = say
        self._started = time.monotonic()
        self.warm: Measure | None = None
        self.memory_peak_bytes = 0

    async def run(self, tally: Tally) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self._look, tally)

    def _look(self, tally: Tally) -> None:
        found = self._node.measure()
        if self.warm is None and tally.inputs >= self._warm_at:
            self.warm = found
        self.memory_peak_bytes = max(self.memory_peak_bytes, found.memory_bytes)
        passed = time.monotonic() - self._started
        self._say(
            f"{passed:6.0f} s  {tally.inputs:>10,} inputs ({tally.inputs / passed:,.0f}/s): "
            f"{tally.answered:,} answered, {tally.closed:,} closed at, {tally.stalled:,} left waiting; "
            f"{found.memory_bytes / 1e6:.0f} MB, {found.open.total} files, {found.threads} threads"
        )
        self._tidy()

    def _tidy(self) -> None:
        from tidelog import NewTopic, TidelogError

        try:
            strange = [topic.name for topic in self._admin.list_topics() if topic.name not in _OWN_TOPICS]
            if strange:
                self._admin.delete_topics(strange)
            if missing := _OWN_TOPICS - {topic.name for topic in self._admin.list_topics()}:
                self._admin.create_topics([NewTopic(name, 1, 1) for name in sorted(missing)])
            groups = [group.group_id for group in self._admin.list_groups() if group.group_id]
            if groups:
                self._admin.delete_consumer_groups(groups)
        except TidelogError:
            return  # a member is still there, or the target was gone already


async def _fuzz_and_watch(
    host: str,
    port: int,
    source: FrameSource,
    inputs: int,
    connections: int,
    first_batch: int,
    tally: Tally,
    watch: _Watch,
) -> None:
    watching = asyncio.create_task(watch.run(tally))
    try:
        sending = asyncio.create_task(
            fuzz(host, port, source, inputs, connections=connections, first_batch=first_batch, tally=tally)
        )
        done, _ = await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
        if sending not in done:  # the watch found the node gone
            sending.cancel()
            await asyncio.wait((sending,))
        for task in done:
            task.result()
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


def _settled(node: WatchedNode, before: Measure) -> Measure:
    """Measure the node once its connections are gone, or after a while."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        found = node.measure()
        if not open_too_many(before.open, found.open) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def open_too_many(before: OpenFiles, after: OpenFiles) -> list[str]:
    """Report the kinds of open files that have grown beyond their bounds."""
    faults = []
    if after.sockets > before.sockets + SOCKETS_GROWTH_MAX:
        faults.append(f"open sockets: {before.sockets} before, {after.sockets} at the end")
    if after.deleted > before.deleted + FILES_GROWTH_MAX:
        faults.append(f"open files that were deleted: {before.deleted} before, {after.deleted} at the end")
    if after.others > before.others + FILES_GROWTH_MAX:
        faults.append(f"open files that are none of its own: {before.others} before, {after.others} at the end")
    return faults


def _judged(before: Measure, warm: Measure, after: Measure) -> list[str]:
    faults = []
    if after.memory_bytes > warm.memory_bytes + GROWTH_BYTES_MAX:
        faults.append(f"memory: {warm.memory_bytes / 1e6:.0f} MB warm, {after.memory_bytes / 1e6:.0f} MB at the end")
    faults += open_too_many(before.open, after.open)
    if after.threads > before.threads + 8:
        faults.append(f"threads: {before.threads} before, {after.threads} at the end")
    return faults


def _first(trouble: BaseException) -> str:
    while isinstance(trouble, BaseExceptionGroup):
        trouble = trouble.exceptions[0]
    return f"{type(trouble).__name__}: {trouble}"
