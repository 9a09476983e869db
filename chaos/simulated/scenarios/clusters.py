"""The available cluster scenarios."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.chaos.simulated.simulation.simulation import Setting
from tidelog.chaos.simulated.workloads import credential_work
from tidelog.chaos.simulated.workloads.access_work import AccessWork
from tidelog.chaos.simulated.workloads.bit_rot import BitRot
from tidelog.chaos.simulated.workloads.group_work import GroupWork
from tidelog.chaos.simulated.workloads.keyed_work import KeyedWork
from tidelog.chaos.simulated.workloads.sink_work import SinkWork
from tidelog.chaos.simulated.workloads.transaction_work import TransactionWork
from tidelog.model.settings.node.access_settings import STANDARD_AUTHORIZER
from tidelog.model.settings.node.replication_settings import RACK_AWARE_SELECTOR, TCP

ALWAYS: Final = frozenset({"election", "leader-change", "isr-shrink", "isr-growth", "broker-fenced"})

QUICK_SHRINK: Final = {"replica.lag.time.max.ms": "2000", "replica.fetch.max.bytes": "2000"}
"""Lagging replicas leave the ISR soon, and catch up in small steps."""

REPLICATION: Final = Setting(
    "replication",
    "Processes killed, paused and stopped, links cut, slowed and broken, clocks off: nothing acknowledged is lost.",
    {
        "kill": 8,
        "kill-in-disk-call": 5,
        "kill-all": 1,
        "kill-two": 2,
        "stop": 3,
        "pause": 4,
        "pause-all": 1,
        "cut": 4,
        "cut-one-way": 4,
        "isolate": 4,
        "break": 4,
        "delay": 2,
        "slow-disk": 1,
        "clock-jump": 1,
        "kill-client": 1,
        "pause-client": 1,
        "double-requests": 2,
        "alter-config": 1,
    },
    ALWAYS | {"truncation", "dedup-hit", "torn-tail"},
    hasty=1,
    config=QUICK_SHRINK,
    plots=("slow-join", "uneven", "hush", "flip", "stuck-leave"),
)

REPLICATION_TCP: Final = replace(
    REPLICATION,
    name="replication-tcp",
    about="The same, with replication.transport=tcp at most starts of nodes: streams over TCP beside others.",
    kinds={**REPLICATION.kinds, "garble-records": 2},
    events=REPLICATION.events | {"tcp-stream"},
    config={**QUICK_SHRINK, "replication.transport": TCP},
)

POWER_LOSS: Final = Setting(
    "power-loss",
    "Hosts lose their power, one or all at once, with flush.messages=1: what was acknowledged is on every disk.",
    {
        "power-loss": 6,
        "power-loss-two": 3,
        "power-loss-all": 3,
        "kill": 2,
        "kill-in-disk-call": 3,
        "cut-one-way": 2,
        "isolate": 2,
        "pause": 1,
        "slow-disk": 3,
        "stop": 1,
    },
    ALWAYS | {"truncation", "dedup-hit", "torn-tail"},
    topic_config={"flush.messages": "1"},
)

UNCLEAN: Final = Setting(
    "unclean",
    "One host keeps losing unsynced data and disks, the others only their processes: nobody leads without its data.",
    {
        "power-loss": 5,
        "wipe-logs": 2,
        "bit-flip": 3,
        "kill": 5,
        "kill-two": 4,
        "kill-all": 2,
        "kill-in-disk-call": 2,
        "isolate": 3,
        "cut-one-way": 2,
        "pause": 2,
        "stop": 3,
        "garble-records": 2,
    },
    ALWAYS | {"truncation", "dedup-hit", "torn-tail"},
    victim_only=("power-loss", "wipe-logs", "bit-flip"),
    hasty=2,
    config=QUICK_SHRINK,
    replication_factors=(3, 2, 2),
    plots=("ping-pong", "lone-leader", "lost-tail", "wiped-last"),
)

DISK: Final = Setting(
    "disk",
    "Log directories fail, fill up and are slow, apart from one another: the others go on.",
    {
        "disk-error": 5,
        "disk-full": 4,
        "slow-disk": 4,
        "kill": 3,
        "kill-in-disk-call": 2,
        "pause": 1,
        "isolate": 2,
        "stop": 2,
    },
    ALWAYS | {"log-directory-failed"},
    partitions=4,
    replication_factors=(3, 3, 2),
    log_dirs=2,
)

PRODUCERS: Final = Setting(
    "producers",
    "Producers that die, and whose requests are doubled, late and lost: each record once, in order.",
    {
        "double-requests": 3,
        "break": 6,
        "delay": 4,
        "cut-one-way": 5,
        "cut": 3,
        "kill-client": 4,
        "pause-client": 4,
        "kill": 4,
        "pause": 4,
        "slow-disk": 2,
    },
    ALWAYS | {"dedup-hit"},
    producers=2,
    raw=1,
    config=QUICK_SHRINK,
    faults=16,
    plots=("late-changes", "late-incarnations"),
    producer_config={
        "request_timeout_ms": (300, 1_000),
        "delivery_timeout_ms": (2_000, 6_000, 60_000),
        "max_in_flight_requests_per_connection": (1, 5, 5),
        "retry_backoff_ms": (10, 100),
    },
)

FIVE_NODES: Final = Setting(
    "five-nodes",
    "Five nodes, three of them controllers, cut into rings and halves and killed by twos.",
    {
        "cut": 8,
        "cut-one-way": 5,
        "ring": 3,
        "halves": 4,
        "isolate": 3,
        "kill": 4,
        "kill-two": 4,
        "pause": 3,
        "stop": 2,
        "delay": 2,
        "kill-all": 1,
        "clock-jump": 1,
    },
    ALWAYS | {"truncation"},
    nodes=5,
    controllers=3,
    partitions=3,
    config=QUICK_SHRINK,
    replication_factors=(3, 2),
    plots=("stuck-join", "stuck-leave", "silent-pair"),
)

RACKS: Final = Setting(
    "racks",
    "Consumers read from followers in their racks, which lag, die and are cut off: they see what leaders committed.",
    {
        "kill": 6,
        "kill-in-disk-call": 2,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 2,
        "pause": 4,
        "cut": 5,
        "cut-one-way": 5,
        "isolate": 4,
        "break": 3,
        "delay": 2,
        "slow-disk": 1,
    },
    ALWAYS | {"read-nearby", "truncation"},
    hasty=2,
    consumers=3,
    config={**QUICK_SHRINK, "replica.selector.class": RACK_AWARE_SELECTOR},
    plots=("slow-join", "uneven", "stuck-leave"),
)

COMPACTION: Final = Setting(
    "compaction",
    "A topic of few keys, cleaned while nodes die, lose power and disks fail: the latest value of each key stays.",
    {
        "kill": 4,
        "kill-in-disk-call": 6,
        "power-loss-in-disk-call": 3,
        "power-loss-in-rename": 2,
        "power-loss-in-swap": 7,
        "kill-all": 1,
        "power-loss": 4,
        "power-loss-two": 2,
        "power-loss-all": 2,
        "disk-error": 2,
        "disk-full": 2,
        "slow-disk": 2,
        "stop": 2,
        "pause": 2,
        "isolate": 2,
        "cut-one-way": 2,
        "clock-jump": 3,
    },
    ALWAYS | {"compacted", "log-directory-failed", "scan", "scan-of-a-cleaned-log", "torn-tail", "truncation"},
    producers=0,
    consumers=0,
    log_dirs=2,
    faults=14,
    replication_factors=(3, 3, 2),
    config={**QUICK_SHRINK, "log.cleaner.backoff.ms": "200"},
    topic_config={
        "cleanup.policy": "compact",
        "segment.ms": "1500",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "500",
        "delete.retention.ms": "30000",
        "flush.messages": "1",
    },
    # Most values leave enough of delete.retention.ms to judge tombstones; an hour back leaves nothing.
    clock_jumps_ms=(-3_600_000, -4_000, -500, 500, 4_000),
    work=KeyedWork,
)

COORDINATORS: Final = {
    **QUICK_SHRINK,
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
"""Few partitions, so that coordinators share them, and their logs are cleaned often."""
CLIENTS_AND_COORDINATORS: Final = {
    "kill": 6,
    "kill-in-disk-call": 3,
    "stop": 3,
    "pause": 3,
    "power-loss": 2,
    "isolate": 3,
    "cut": 3,
    "cut-one-way": 3,
    "break": 3,
    "delay": 2,
    "slow-disk": 1,
    "double-requests": 4,
}
"""Faults between a transaction or a sink and its logs."""

GROUPS: Final = Setting(
    "groups",
    "A consumer group whose members come, go, die and stand still while its coordinator moves: nothing is lost to it.",
    {
        "kill-member": 5,
        "pause-member": 4,
        "leave": 4,
        "join": 3,
        "replace-member": 3,
        "grow-topic": 2,
        "new-topic": 1,
        "kill": 5,
        "kill-in-disk-call": 2,
        "stop": 3,
        "pause": 3,
        "isolate": 3,
        "cut": 3,
        "cut-one-way": 2,
        "break": 2,
        "delay": 1,
        "slow-disk": 1,
        "kill-all": 1,
        "clock-jump": 3,
    },
    ALWAYS
    | {
        "commit",
        "compacted",
        "cooperative",
        "coordinator-moved",
        "fenced-member",
        "forged-commit",
        "generation",
        "lost-partitions",
        "redelivered",
    },
    faults=16,
    producers=2,
    consumers=0,
    config=COORDINATORS,
    plots=("dead-in-rebalance", "coordinators-in-turns", "zombie", "unheard-coordinator", *["uneven-coordinators"] * 2),
    targets=("coordinator", "coordinator", "coordinator"),
    work=GroupWork,
)

TRANSACTIONS: Final = Setting(
    "transactions",
    "Transactions whose producers, coordinators and leaders die, stand still and come back: all of each or nothing.",
    {
        "kill-producer": 6,
        "pause-producer": 5,
        "second-producer": 5,
        **CLIENTS_AND_COORDINATORS,
        "late-verdicts": 4,
        "kill-all": 1,
        "clock-jump": 3,
    },
    ALWAYS
    | {
        "aborted",
        "committed",
        "compacted",
        "decided-elsewhere",
        "ended-ProducerFencedError",
        "prepared",
        "snapshot",
        "unknown",
    },
    faults=16,
    producers=1,
    consumers=0,
    config={
        **COORDINATORS,
        "producer.id.expiration.ms": "6000",
        "producer.id.expiration.check.interval.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.state.log.num.partitions": "3",
        "transaction.two.phase.commit.enable": "true",
    },
    victim_only=("power-loss",),
    plots=(
        *["unheard-decision"] * 2,
        *["between-two-steps"] * 2,
        *["zombie-copier"] * 2,
        "deposed-is-asked",
        "leaders-in-turns",
    ),
    targets=("transactions", "transactions", "bank", "coordinator", "partition-leader"),
    work=TransactionWork,
)

SINKS: Final = Setting(
    "sinks",
    "Sinks whose drivers, tasks, coordinators and leaders die, stand still and come back: each batch whole, once.",
    {
        "kill-producer": 8,
        "pause-producer": 6,
        "second-producer": 6,
        **CLIENTS_AND_COORDINATORS,
        "kill-all": 1,
        "clock-jump": 3,
    },
    ALWAYS
    | {
        "aborted",
        "already-committed",
        "commit-unknown",
        "compacted",
        "decided",
        "ended-SinkJobFencedError",
        "noted-by-another",
        "speculative",
        "task-aborted",
        "transaction-lost",
    },
    faults=16,
    producers=1,
    consumers=0,
    config={
        **QUICK_SHRINK,
        "log.cleaner.backoff.ms": "300",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.sink.timeout.ms": "4000",
        "transaction.sink.prepared.timeout.ms": "6000",
        "transaction.state.log.num.partitions": "3",
    },
    victim_only=("power-loss",),
    plots=("between-sink-steps", "unheard-batch"),
    targets=("sink", "sink", "sink", "partition-leader"),
    work=SinkWork,
)

BIT_ROT: Final = Setting(
    "bit-rot",
    "Synced bytes flip, each batch on one replica at most: damage is refused in time, and mended from the others.",
    {
        "rot": 14,
        "rot-stopped": 3,
        "kill": 2,
        "kill-in-disk-call": 3,
        "isolate": 1,
        "pause": 1,
        "power-loss": 1,
    },
    frozenset({"damage-found", "damage-mended", "rot-while-stopped", "leader-change"}),
    faults=24,
    victim_only=("power-loss",),
    config={"log.scrub.interval.ms": "4000", "log.flush.offset.checkpoint.interval.ms": "1000"},
    work=BitRot,
)

ACCESS: Final = Setting(
    "access",
    "Rights given and taken back while nodes and links fail: every node decides by its own image, and none is stale.",
    {
        "kill": 5,
        "kill-in-disk-call": 3,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 3,
        "pause": 4,
        "isolate": 4,
        "cut": 3,
        "cut-one-way": 3,
        "break": 2,
        "delay": 3,
        "slow-disk": 1,
        "clock-jump": 1,
    },
    ALWAYS | {"allowed", "denied", "granted", "revoked", "changed", "decided-amid-a-change"},
    producers=1,
    faults=10,
    seconds=30.0,
    config={"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"},
    work=AccessWork,
)

CREDENTIALS: Final = Setting(
    "credentials",
    "Passwords and delegation tokens come and go while nodes, links and clocks fail: nobody is served after their end.",
    {**ACCESS.kinds, "clock-jump": 2},
    ALWAYS
    | {"password-set", "user-deleted", "token-created", "token-renewed", "renewal-refused", "token-expired"}
    | {"login-taken", "login-refused", "request-taken", "request-refused", "judged-amid-a-change"},
    producers=1,
    faults=10,
    seconds=30.0,
    config=credential_work.SETTINGS,
    work=credential_work.CredentialWork,
    clock_jumps_ms=(-9_000, -2_000, 2_000, 9_000),
)

SETTINGS: Final = (
    REPLICATION,
    POWER_LOSS,
    UNCLEAN,
    DISK,
    PRODUCERS,
    FIVE_NODES,
    COMPACTION,
    GROUPS,
    TRANSACTIONS,
    SINKS,
    BIT_ROT,
    ACCESS,
    CREDENTIALS,
)
