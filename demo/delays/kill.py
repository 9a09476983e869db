"""The kill of the demo's Spark driver, timed by the cluster's state: when a micro-batch is written and undecided."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cli.local.watch import WatchFailed
from tidelog.client.admin.transaction_types import TransactionState
from tidelog.client.errors import TransactionalIdNotFoundError
from tidelog.demo.delays.driver_process import DriverProcess

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.client.admin.sinks import SinkDescription

_LOOK_EVERY_S: Final = 0.003
_LOOK_EARLY_EVERY_S: Final = 0.05
"""Polling interval while the batch is not due yet: Spark needs the processor."""


@dataclass(frozen=True, slots=True)
class DriverKill:
    """The moment of the kill, according to the sink's ledger."""

    batch: int
    """The micro-batch in progress."""
    prepared: int
    """Its transactions that were prepared and waited for the driver's decision."""
    open: int
    """Its transactions that were being written."""
    at: float
    """By the monotonic clock."""


def kill_mid_batch(admin: Admin, driver: DriverProcess, sink: str, after_batch: int, silence_s: float) -> DriverKill:
    """Kill -9 the driver while a batch after ``after_batch`` has a prepared transaction and no decision.

    First freeze the driver with its JVM and workers, and check again. If a decision came in between, let the driver
    continue, and wait for the next batch. Raises :class:`WatchFailed`, also if no batch is decided for ``silence_s``.
    """
    latest, heard = -1, time.monotonic()
    while time.monotonic() < heard + silence_s:
        if driver.ended():
            raise WatchFailed(
                f"expected {driver.name} to be killed in a batch behind {after_batch}, but it ended before"
            )
        if _prepared(found := describe(admin, sink), after_batch):
            driver.freeze()
            found = describe(admin, sink)
            if _prepared(found, after_batch):
                driver.kill()
                assert found is not None
                assert found.current is not None
                states = [one.state for one in found.transactions]
                return DriverKill(
                    batch=found.current.batch,
                    prepared=states.count(TransactionState.PREPARED),
                    open=states.count(TransactionState.ONGOING),
                    at=time.monotonic(),
                )
            driver.thaw()
        if (decided := last_batch(found)) > latest:
            latest, heard = decided, time.monotonic()
        time.sleep(_LOOK_EVERY_S if decided >= after_batch else _LOOK_EARLY_EVERY_S)
    raise WatchFailed(f"waited {silence_s:g} s for a batch behind {max(after_batch, latest)} to be prepared")


def describe(admin: Admin, sink: str) -> SinkDescription | None:
    """Return the sink's ledger; ``None`` before its first batch."""
    try:
        return admin.describe_sinks([sink])[sink]
    except TransactionalIdNotFoundError:
        return None


def last_batch(found: SinkDescription | None) -> int:
    """Return the last decided batch, -1 for none."""
    return -1 if found is None or found.last is None else found.last.batch


def _prepared(found: SinkDescription | None, after_batch: int) -> bool:
    if found is None or found.current is None or found.current.batch <= max(last_batch(found), after_batch):
        return False
    return any(one.state is TransactionState.PREPARED for one in found.transactions)
