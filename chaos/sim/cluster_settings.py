"""The cluster scenarios that there are."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.sim.cluster_scenario import ClusterScenario
from tidelog.chaos.sim.group_work import GroupWork
from tidelog.chaos.sim.keyed_work import KeyedWork
from tidelog.chaos.sim.replica_moves import ReplicaMoves
from tidelog.chaos.sim.simulation import Setting
from tidelog.chaos.sim.sink_work import SinkWork
from tidelog.chaos.sim.transaction_work import TransactionWork

ALWAYS: Final = frozenset({"election", "leader-change", "isr-shrink", "isr-growth", "broker-fenced"})

QUICK_SHRINK: Final = {"replica.lag.time.max.ms": "2000", "replica.fetch.max.bytes": "2000"}
"""Who lags leaves soon, and catches up by small steps."""

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
    "Producers whose requests are doubled, late and lost, and who die: each record once, in order.",
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
    plots=("late-changes", "late-lives"),
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

REASSIGNMENT: Final = Setting(
    "reassignment",
    "Replicas moved among five nodes, wishes changed and cancelled, leaders elected, while nodes and links fail.",
    {
        "reassign": 16,
        "cancel-reassignment": 3,
        "elect": 3,
        "throttle": 2,
        "kill": 5,
        "kill-in-disk-call": 3,
        "kill-two": 2,
        "kill-all": 1,
        "stop": 2,
        "pause": 3,
        "cut": 3,
        "cut-one-way": 3,
        "isolate": 3,
        "delay": 1,
        "slow-disk": 1,
    },
    ALWAYS | {"truncation", "reassignment", "reassignment-over", "reassignment-cancelled", "preferred-elected"},
    nodes=5,
    controllers=3,
    partitions=2,
    faults=18,
    seconds=30.0,
    producers=1,
    hasty=1,
    config=QUICK_SHRINK,
    replication_factors=(3, 2),
    work=ReplicaMoves,
)

COMPACTION: Final = Setting(
    "compaction",
    "A topic of few keys, cleaned while nodes die, lose power and disks fail: the latest value of each key stays.",
    {
        "kill": 4,
        "kill-in-disk-call": 6,
        "power-loss-in-disk-call": 3,
        "power-loss-in-rename": 4,
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
    },
    ALWAYS | {"compacted", "log-directory-failed", "passage", "passage-of-what-is-left", "torn-tail", "truncation"},
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
    work=KeyedWork,
)

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
    config={
        **QUICK_SHRINK,
        "offsets.topic.num.partitions": "2",
        "group.min.session.timeout.ms": "500",
        "group.initial.rebalance.delay.ms": "200",
        "log.cleaner.backoff.ms": "300",
        "log.cleaner.min.cleanable.ratio": "0.01",
    },
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
        "late-verdicts": 4,
        "kill-all": 1,
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
        **QUICK_SHRINK,
        "offsets.topic.num.partitions": "2",
        "group.min.session.timeout.ms": "500",
        "group.initial.rebalance.delay.ms": "200",
        "log.cleaner.backoff.ms": "300",
        "log.cleaner.min.cleanable.ratio": "0.01",
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
        "places-in-turns",
    ),
    targets=("transactions", "transactions", "bank", "coordinator", "place"),
    work=TransactionWork,
)

SINKS: Final = Setting(
    "sinks",
    "Sinks whose drivers, tasks, coordinators and leaders die, stand still and come back: each batch whole, once.",
    {
        "kill-producer": 8,
        "pause-producer": 6,
        "second-producer": 6,
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
        "kill-all": 1,
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
    targets=("sink", "sink", "sink", "place"),
    work=SinkWork,
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
)


def replication() -> ClusterScenario:
    """The scenario ``replication``."""
    return ClusterScenario(REPLICATION)


def power_loss() -> ClusterScenario:
    """The scenario ``power-loss``."""
    return ClusterScenario(POWER_LOSS)


def unclean() -> ClusterScenario:
    """The scenario ``unclean``."""
    return ClusterScenario(UNCLEAN)


def disk() -> ClusterScenario:
    """The scenario ``disk``."""
    return ClusterScenario(DISK)


def producers() -> ClusterScenario:
    """The scenario ``producers``."""
    return ClusterScenario(PRODUCERS)


def five_nodes() -> ClusterScenario:
    """The scenario ``five-nodes``."""
    return ClusterScenario(FIVE_NODES)


def reassignment() -> ClusterScenario:
    """The scenario ``reassignment``."""
    return ClusterScenario(REASSIGNMENT)


def compaction() -> ClusterScenario:
    """The scenario ``compaction``."""
    return ClusterScenario(COMPACTION)


def groups() -> ClusterScenario:
    """The scenario ``groups``."""
    return ClusterScenario(GROUPS)


def transactions() -> ClusterScenario:
    """The scenario ``transactions``."""
    return ClusterScenario(TRANSACTIONS)


def sinks() -> ClusterScenario:
    """The scenario ``sinks``."""
    return ClusterScenario(SINKS)
