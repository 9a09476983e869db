"""The judge of the kill matrix finds each fault that it must find, and the crash points are where they say."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidelog.chaos.spark_kills.cases import CASES
from tidelog.chaos.spark_kills.judge import Reading, judge
from tidelog.chaos.spark_kills.points import Action, Call, CrashPoint, When
from tidelog.chaos.spark_kills.processes import members, owner_of, port_of, signal_all, unread_bytes
from tidelog.chaos.spark_kills.query import Kind, Query
from tidelog.chaos.spark_kills.rows import GROUPS, PARTITIONS, ROWS, expected, source_rows
from tidelog.chaos.spark_kills.stage import ALREADY, OK, KillStage, Seen
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.calls.sink_api import (
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    SinkWinner,
)
from tidelog.proto.calls.transaction_api import TransactionMarker
from tidelog.proto.transport.network import CallContext

WANTED = {b"a": 0, b"b": 0, b"c": 1}
DECIDED = {0: 10.0, 1: 20.0}
GOOD = [Reading(0, 0, b"a", 11.0), Reading(1, 0, b"b", 11.0), Reading(0, 2, b"c", 21.0)]
PEER = CallContext("CLIENT", "ipv4:127.0.0.1:40000")


def test_what_is_whole_passes() -> None:
    assert judge(WANTED, GOOD, GOOD, DECIDED) == []


@pytest.mark.parametrize(
    ("final", "watched", "fault"),
    [
        (GOOD[:2], GOOD[:2], "lost: 1: c"),
        ([*GOOD, Reading(1, 5, b"a", 0)], [*GOOD, Reading(1, 5, b"a", 30)], "twice: 1: a"),
        ([*GOOD, Reading(1, 5, b"x", 0)], [*GOOD, Reading(1, 5, b"x", 30)], "wrong: 1: x"),
        (GOOD, [*GOOD, Reading(1, 5, b"x", 30)], "seen by a reader, and not there at the end: 1: 1@5 x"),
        (GOOD, GOOD[1:], "there at the end, and passed over by a reader: 1: 0@0 a"),
        (GOOD, [*GOOD, GOOD[0]], "read twice at one place: 1: 0@0 a"),
        (GOOD, [GOOD[0]._replace(at=9.9), *GOOD[1:]], "seen before its batch was decided: 1: a"),
    ],
)
def test_each_fault_is_found(final: list[Reading], watched: list[Reading], fault: str) -> None:
    assert judge(WANTED, final, watched, DECIDED) == [fault]


def test_a_batch_that_nobody_asked_to_commit_is_early_at_any_time() -> None:
    assert judge(WANTED, GOOD, GOOD, {0: 10.0}) == ["seen before its batch was decided: 1: c"]


def test_what_each_kind_of_query_is_to_make() -> None:
    ends = {0: {0: 100, 1: 100}, 1: {0: ROWS, 1: ROWS}}
    copied = expected(Kind.COPY, ends)
    assert len(copied) == ROWS * PARTITIONS == len({row.value for row in source_rows()})
    assert sorted(copied.values(), key=str) == [0] * 200 + [1] * (2 * ROWS - 200)
    counted = expected(Kind.COUNT, ends)
    assert len(counted) == 2 * GROUPS
    totals = {batch: sum(int(row.split(b":")[1]) for row, of in counted.items() if of == batch) for batch in ends}
    assert totals == {0: 200, 1: 2 * ROWS}
    windows = expected(Kind.APPEND_COUNT, ends)
    assert {row.split(b":")[1] for row in windows} == {b"100"}
    assert set(windows.values()) == {None}


def test_cases_are_what_they_are_named() -> None:
    assert all(name == case.name for name, case in CASES.items())
    silent = [case.name for case in CASES.values() if not case.points and not case.together]
    assert silent == [], "a case without a crash point"


def test_a_query_goes_to_its_driver_and_back() -> None:
    query = Query(Kind.COUNT, "h:1", "a", "b", "/c", "/s", {"x": "1"}, {"topic": "ä"})
    assert Query.from_json(query.to_json()) == query


# --- crash points -----------------------------------------------------------------------------------------------------


class Mortal:
    """A driver that says what was done to it."""

    def __init__(self, logged: int = -1) -> None:
        self.done: list[str] = []
        self.logged = logged

    def owns(self, port: int) -> int | None:
        return 7 if port == 40_000 else None

    def kill(self) -> None:
        self.done.append("kill")

    async def kill_once_told(self, fault: Callable[[str], None]) -> None:
        self.done.append("told")

    def stop_jvm(self) -> None:
        self.done.append("stop jvm")

    def freeze(self) -> None:
        self.done.append("freeze")

    def orphan(self, pid: int) -> None:
        self.done.append(f"orphan {pid}")

    def kill_worker(self, pid: int) -> None:
        self.done.append(f"kill {pid}")

    def kill_executor(self, pid: int) -> bool:
        self.done.append(f"kill executor of {pid}")
        return self.logged < 0

    def is_logged(self, batch: int) -> bool:
        return batch <= self.logged


def begin(batch: int, job: str, attempt: str = "a") -> BeginSinkTransactionRequest:
    return BeginSinkTransactionRequest("s", batch, job, attempt)


async def answered(answer: object) -> object:
    return answer


def staged(tmp_path: Path, *points: CrashPoint) -> tuple[KillStage, Mortal, list[int]]:
    killed: list[int] = []
    stage, driver = KillStage(points, tmp_path, killed.append), Mortal()
    stage.drivers.append(driver)
    return stage, driver, killed


async def ask(
    stage: KillStage, request: object, answer: object, context: CallContext = PEER
) -> tuple[Seen, Awaitable[object]]:
    seen = stage.saw_call(request, 2, context)
    assert seen is not None
    going = stage.keep(stage.carry(seen, lambda: answered(answer)))
    for _ in range(6):
        await asyncio.sleep(0)
    return seen, going


BEGUN = BeginSinkTransactionResponse(ErrorCode.NONE, "t")


async def test_a_point_is_met_at_its_call_and_no_other(tmp_path: Path) -> None:
    point = CrashPoint(Call.BEGIN, When.RAN, (Action.KILL_WORKER,), batch=1, run=2, nth=2)
    stage, driver, _ = staged(tmp_path, point)
    for batch, job in ((0, "x"), (1, "one"), (1, "one"), (1, "two")):
        assert await (await ask(stage, begin(batch, job), BEGUN))[1] is BEGUN
        assert stage.unfired() == [point]
    assert driver.done == []
    await ask(stage, begin(1, "two"), BEGUN)
    await ask(stage, begin(1, "two"), BEGUN)
    assert driver.done == ["kill 7"]
    assert stage.unfired() == []
    assert stage.out == []


async def test_an_executor_is_killed_by_its_worker_and_its_absence_is_a_fault(tmp_path: Path) -> None:
    point = CrashPoint(Call.BEGIN, When.BEFORE, (Action.KILL_EXECUTOR,), batch=0, times=2)
    stage, driver, _ = staged(tmp_path, point)
    await ask(stage, begin(0, "j"), BEGUN)
    assert (driver.done, stage.faults, stage.out) == (["kill executor of 7"], [], [])
    driver.logged = 0
    await ask(stage, begin(0, "j"), BEGUN)
    assert "no executor made this call" in stage.faults[0]


async def test_what_is_lost_never_comes_and_what_is_held_comes_later(tmp_path: Path) -> None:
    lost = CrashPoint(Call.BEGIN, When.BEFORE, (Action.KILL_DRIVER, Action.LOSE), batch=0)
    unanswered = CrashPoint(Call.BEGIN, When.RAN, (Action.LOSE,), batch=1)
    held = CrashPoint(Call.BEGIN, When.BEFORE, (Action.HOLD,), batch=2)
    release = CrashPoint(Call.COMMIT, When.RAN, (Action.RELEASE,))
    stage, driver, _ = staged(tmp_path, lost, unanswered, held, release)
    found = [await ask(stage, begin(batch, "j"), BEGUN) for batch in range(3)]
    assert [(one.begun is not None, one.outcome) for one, _ in found] == [(False, ""), (True, OK), (False, "")]
    assert driver.done == ["kill"]
    assert stage.out == [driver]
    await ask(stage, CommitBatchRequest("s", 2, "j"), CommitBatchResponse(ErrorCode.NONE, already_committed=True))
    assert await found[2][1] is BEGUN
    assert found[2][0].begun is not None
    assert stage.seen[-1].outcome == ALREADY
    await stage.end()
    for _, going in found[:2]:
        with pytest.raises(asyncio.CancelledError):
            await going


async def test_a_point_that_cannot_be_is_a_fault(tmp_path: Path) -> None:
    logged = CrashPoint(Call.BEGIN, When.BEFORE, (Action.CHECK_LOGGED,), batch=2)
    unlogged = CrashPoint(Call.BEGIN, When.BEFORE, (Action.CHECK_UNLOGGED,), batch=1)
    freeze = CrashPoint(Call.BEGIN, When.BEFORE, (Action.FREEZE_DRIVER,), batch=3)
    stage, driver, _ = staged(tmp_path, logged, unlogged, freeze)
    driver.logged = 1
    await ask(stage, begin(2, "j"), BEGUN)
    assert stage.faults == []
    await ask(stage, begin(1, "j"), BEGUN)
    assert len(stage.faults) == 1
    await ask(stage, begin(3, "j"), BEGUN, CallContext("CLIENT", "ipv4:127.0.0.1:9"))
    assert len(stage.faults) == 2
    assert driver.done == []


async def test_brokers_die_before_the_markers_of_what_was_committed(tmp_path: Path) -> None:
    point = CrashPoint(Call.MARKERS, When.BEFORE, (Action.KILL_NODE,), batch=1)
    stage, _, killed = staged(tmp_path, point)
    winner = SinkWinner("a", ProducerId(5), ProducerEpoch(0))
    await ask(stage, CommitBatchRequest("s", 1, "j", (winner,)), CommitBatchResponse(ErrorCode.NONE))
    for producer_id, committed in ((4, True), (5, False)):
        marker = TransactionMarker(ProducerId(producer_id), ProducerEpoch(1), committed, 0, ())
        assert stage.saw_marker(marker, 3) is None
    assert killed == []
    assert stage.saw_marker(TransactionMarker(ProducerId(5), ProducerEpoch(1), True, 0, ()), 3) is not None
    assert killed == [3]
    assert stage.winners == {"a"}


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_connection_is_found_in_the_process_that_has_it() -> None:
    program = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1, socket.MSG_PEEK)"
    )
    program += "; print('read', flush=True); sys.stdin.read()"
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", program, str(server.getsockname()[1])]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        connection, (_, port) = server.accept()
        with child, connection:
            assert port_of(f"ipv4:127.0.0.1:{port}") == port
            assert owner_of(port, child.pid) == child.pid
            assert owner_of(port, os.getsid(0)) is None
            assert unread_bytes(child.pid) == 0
            connection.sendall(b"12345")
            assert child.stdout is not None
            assert child.stdout.readline() == b"read\n"
            assert unread_bytes(child.pid) == 5
            assert [one.pid for one in members(child.pid)] == [child.pid]
            signal_all([child.pid], signal.SIGKILL)
            child.wait()
            assert members(child.pid) == []
            signal_all([child.pid], signal.SIGKILL)


def test_the_page_has_every_case() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark-kills.md").read_text()
    told = [tuple(line.strip("| ").split(" | ")) for line in page.splitlines() if line.startswith("| `")]
    assert told == [(f"`{case.name}`", case.shows) for case in CASES.values()]
