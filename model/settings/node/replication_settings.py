"""A node's settings for replication and for the producer state of its replicas. Source: Kafka's ``ReplicationConfigs``,
``QuotaConfig`` and ``TransactionLogConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.settings.config_def import LONG_MAX, Update, integer, listing, long, text

CORDONED: Final = "cordoned.log.dirs"
CORDONED_IN_FILE: Final = (
    "expected it to be set on the running broker, where controllers see it (tidelog brokers drain, tidelog configs "
    "alter --broker), found it among the node's own settings"
)
EVERY_DIRECTORY: Final = "*"
LEADER_SELECTOR: Final = "LeaderSelector"
RACK_AWARE_SELECTOR: Final = "RackAwareReplicaSelector"
KAFKA_SELECTORS: Final = "org.apache.kafka.common.replica."
"""Kafka's package of these classes; settings may give full names."""

GRPC: Final = "grpc"
TCP: Final = "tcp"


@dataclass(frozen=True)
class ReplicationSettings:
    """A node's settings for followers, their fetches and throttles, and producer state."""

    replica_lag_time_max_ms: int = long(
        30_000, "Time behind the leader after which a follower leaves the ISR.", at_least=1
    )
    replica_fetch_max_bytes: int = integer(
        2**20, "Bytes that a follower asks for per partition in one fetch.", at_least=0
    )
    replica_fetch_response_max_bytes: int = integer(
        4 * 2**20, "Bytes that a follower asks for in one fetch.", at_least=0
    )
    replica_fetch_wait_max_ms: int = integer(500, "Longest wait of a follower's fetch at the leader.", at_least=0)
    replica_fetch_idle_wait_max_ms: int = integer(
        2_000,
        "Bound to which that wait grows while no records arrive; never beyond a quarter of replica.lag.time.max.ms. "
        "Kafka has no such setting.",
        at_least=0,
    )
    replica_fetch_min_bytes: int = integer(1, "Fewest bytes that end a follower's wait.", at_least=0)
    replica_fetch_backoff_ms: int = integer(1_000, "Wait after a partition's fetch failed.", at_least=0)
    replica_socket_timeout_ms: int = integer(30_000, "Time for a leader to answer a follower.", at_least=1)
    replication_transport: str = text(
        GRPC,
        "The transport of records from leaders to followers. tcp costs less processor time for many small requests; "
        "the nodes still open each stream over gRPC, and stay with it if either end does not have tcp. Kafka has no "
        "such setting.",
        choices=(GRPC, TCP),
    )
    replication_transport_port: int = integer(
        0,
        "Port for followers' connections with replication.transport=tcp, at the host of the listener among brokers; "
        "0: any free port. Kafka has no such setting.",
        at_least=0,
        at_most=65_535,
    )
    replica_selector_class: str = text(
        LEADER_SELECTOR,
        "From which replica consumers with a client.rack read: from the leader, or with RackAwareReplicaSelector from "
        "one in their rack, if it is in sync (KIP-392).",
        choices=(
            LEADER_SELECTOR,
            RACK_AWARE_SELECTOR,
            KAFKA_SELECTORS + LEADER_SELECTOR,
            KAFKA_SELECTORS + RACK_AWARE_SELECTOR,
        ),
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5_000, "Time between two checkpoints of the high watermarks.", at_least=1
    )

    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes per second that this broker sends, as a leader, to throttled replicas that are not in sync (KIP-73).",
        at_least=0,
        update=Update.PER_BROKER,
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes per second that this broker's own throttled replicas fetch while they are not in sync (KIP-73).",
        at_least=0,
        update=Update.PER_BROKER,
    )

    replica_alter_log_dirs_io_max_bytes_per_second: int = long(
        LONG_MAX,
        "Bytes per second that this broker copies when logs move between its directories (KIP-113).",
        at_least=0,
        update=Update.PER_BROKER,
    )

    cordoned_log_dirs: tuple[str, ...] = listing(
        (),
        "* keeps new replicas off this broker (KIP-1066). Can only be set while it runs, for all directories.",
        choices=(EVERY_DIRECTORY,),
        update=Update.PER_BROKER,
    )

    links: tuple[str, ...] = listing(
        (),
        "Links from other clusters, as `tidelog links create` writes them: name;addresses;topics;groups.",
        update=Update.CLUSTER_WIDE,
    )

    producer_id_expiration_ms: int = integer(
        86_400_000, "Time after which a partition forgets an idle producer.", at_least=1
    )
    producer_id_expiration_check_interval_ms: int = integer(
        600_000, "Time between checks for idle producers.", at_least=1
    )
    producer_ids_max: int = integer(
        100_000, "Most producers that a partition remembers; beyond that, it forgets the one idle longest.", at_least=1
    )
