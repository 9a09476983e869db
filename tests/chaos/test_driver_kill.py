"""The demo's kill of a driver: it hits the right place, and leaves nothing of the driver alive."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.cli.local.process import stat_of
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.client.admin.transaction_types import TransactionState
from tidelog.client.errors import TransactionalIdNotFoundError
from tidelog.demo.delays.driver_process import DriverProcess
from tidelog.demo.delays.kill import kill_mid_batch

FAMILY = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    print('{"event": "child"}', flush=True)
time.sleep(600)
"""
OPEN, PREPARED = TransactionState.ONGOING, TransactionState.PREPARED


@pytest.fixture
def family(tmp_path: Path) -> Iterator[DriverProcess]:
    """A process with a child in a process group of its own, as a Spark driver has."""
    driver = DriverProcess(tmp_path, "driver", [sys.executable, "-c", FAMILY])
    try:
        wait_until("the child", lambda: driver.event("child") is not None, 30)
        yield driver
    finally:
        driver.kill()


def test_a_killed_driver_takes_all_its_processes_along(family: DriverProcess) -> None:
    members = family.members()
    assert len(members) == 2
    assert len({os.getpgid(pid) for pid in members}) == 2
    family.kill()
    assert family.members() == []
    for pid in members:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    family.kill()  # there is nothing left to do


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads states from /proc")
def test_a_frozen_driver_is_killed_too(family: DriverProcess) -> None:
    family.freeze()
    wait_until("both to stop", lambda: all(state(pid) == "T" for pid in family.members()), 10)
    family.kill()
    assert family.members() == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads states from /proc")
def test_a_thawed_driver_runs_on(family: DriverProcess) -> None:
    family.freeze()
    wait_until("both to stop", lambda: all(state(pid) == "T" for pid in family.members()), 10)
    family.thaw()
    wait_until("both to run", lambda: all(state(pid) == "S" for pid in family.members()), 10)
    assert not family.ended()


def state(pid: int) -> str:
    return (stat_of(pid) or "?")[0]


def test_a_driver_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    driver = DriverProcess(tmp_path, "driver", [sys.executable, "-c", "raise ValueError('no such topic')"])
    with pytest.raises(WatchFailed, match="exit code 1: ValueError: no such topic"):
        wait_until("its end", driver.ended, 30)
    driver.kill()


# --- Where it hits ---


def ledger(last: int, batch: int | None = None, *states: TransactionState) -> Any:
    """A ledger's description, as far as it is looked at."""
    return SimpleNamespace(
        last=None if last < 0 else SimpleNamespace(batch=last),
        current=None if batch is None else SimpleNamespace(batch=batch),
        transactions=[SimpleNamespace(state=state) for state in states],
    )


class Script:
    """Admin client and driver in one: answers one look after the other, and keeps account of what was done."""

    name = "driver"

    def __init__(self, *looks: Any) -> None:
        self._looks = list(looks)
        self.done: list[str] = []

    def describe_sinks(self, sinks: list[str]) -> dict[str, Any]:
        look = self._looks.pop(0)
        if look is None:
            raise TransactionalIdNotFoundError("none yet")
        return dict.fromkeys(sinks, look)

    def ended(self) -> bool:
        return not self._looks

    def freeze(self) -> None:
        self.done.append("freeze")

    def thaw(self) -> None:
        self.done.append("thaw")

    def kill(self) -> None:
        self.done.append("kill")


def run(script: Script, silence_s: float = 30.0) -> Any:
    return kill_mid_batch(cast(Any, script), cast(Any, script), "delays", 4, silence_s)


def test_it_hits_the_first_prepared_batch_behind_the_mark() -> None:
    script = Script(
        None,
        ledger(-1, 0, OPEN),
        ledger(3, 4, PREPARED),  # too early
        ledger(4),
        ledger(4, 5, OPEN),
        ledger(4, 5, OPEN, PREPARED),
        ledger(4, 5, PREPARED, PREPARED),
    )
    kill = run(script)
    assert (kill.batch, kill.prepared, kill.open) == (5, 2, 0)
    assert script.done == ["freeze", "kill"]


@pytest.mark.parametrize("between", [ledger(5), ledger(5, 5, TransactionState.PREPARE_COMMIT), ledger(4, 5, OPEN)])
def test_a_batch_that_was_decided_meanwhile_is_let_go(between: object) -> None:
    script = Script(ledger(4, 5, PREPARED), between, ledger(5, 6, PREPARED), ledger(5, 6, PREPARED, OPEN))
    kill = run(script)
    assert (kill.batch, kill.prepared, kill.open) == (6, 1, 1)
    assert script.done == ["freeze", "thaw", "freeze", "kill"]


def test_a_driver_that_decides_nothing_for_too_long_is_a_failure() -> None:
    script = Script(ledger(0), ledger(1), *[ledger(2)] * 1_000)
    with pytest.raises(WatchFailed, match=r"waited 0\.4 s for a batch behind 4 to be prepared"):
        run(script, silence_s=0.4)
    assert script.done == []


def test_a_driver_that_ends_before_is_a_failure() -> None:
    with pytest.raises(WatchFailed, match="but it ended before"):
        run(Script(ledger(4), ledger(5)))
