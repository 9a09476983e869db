"""The scenarios of programs that build on the log: retries and dead letters, the outbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.chaos.simulated.scenarios.clusters import ALWAYS, CLIENTS_AND_COORDINATORS, QUICK_SHRINK
from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads.patterns.outbox_work import OutboxWork
from tidelog.chaos.simulated.workloads.patterns.retry_work import RetryWork

_CONFIG: Final = {
    **QUICK_SHRINK,
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "1",
}

RETRIES: Final = Setting(
    "retries",
    "Handlers that raise, in programs that die and stand still: each task is done or a dead letter, once.",
    {
        "kill-producer": 8,
        "pause-producer": 5,
        "second-producer": 4,
        **CLIENTS_AND_COORDINATORS,
        "kill-all": 1,
    },
    ALWAYS | {"came-again", "dead-attempts", "dead-invalid", "dead-rejected", "done", "handled-again"},
    producers=0,
    consumers=0,
    faults=12,
    partitions=1,
    seconds=25.0,
    config=_CONFIG,
    victim_only=("power-loss",),
    plots=("between-two-steps", "zombie-worker"),
    targets=("coordinator", "transactions", "delay-leader", "partition-leader"),
    work=RetryWork,
)

OUTBOX: Final = replace(
    RETRIES,
    name="outbox",
    about="Relays of a database that die, stand still and run two at a time: each committed row is sent once, "
    "in order.",
    events=ALWAYS | {"aborted", "database-locked", "ended-ProducerFencedError", "kept", "rolled-back", "sent"},
    targets=("coordinator", "transactions", "partition-leader"),
    work=OutboxWork,
)
