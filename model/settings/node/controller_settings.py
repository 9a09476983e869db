"""A node's settings for the metadata quorum and its controller. Source: Kafka's ``QuorumConfig``, ``KRaftConfigs`` and
``ReplicationConfigs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.settings.config_def import boolean, integer, long

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class ControllerSettings:
    """A node's settings for the quorum, sessions with brokers and the controller's bounds."""

    broker_heartbeat_interval_ms: int = integer(250, "Longest time between two heartbeats of a broker.", at_least=1)
    broker_session_timeout_ms: int = integer(
        700, "Time without a heartbeat after which a broker is fenced.", at_least=1
    )
    initial_broker_registration_timeout_ms: int = integer(60_000, "Time for a starting broker to register.", at_least=1)
    controller_quorum_election_timeout_ms: int = integer(
        650,
        "Shortest time without a message from the leader after which a controller stands for election.",
        at_least=100,
    )
    controller_quorum_request_timeout_ms: int = integer(
        2_000, "Time that a controller has to answer a broker, before the broker asks the next one.", at_least=1
    )
    controller_quorum_retry_backoff_ms: int = integer(
        20, "First pause after a broker finds no active controller; it doubles up to 250.", at_least=1
    )
    unclean_recovery_timeout_ms: int = long(
        300_000,
        "If every replica that may have all records stopped uncleanly: how long the controller waits for all their "
        "logs. After that, the best one present leads.",
        at_least=0,
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        20 * 2**20, "Bytes of metadata log that trigger a snapshot.", at_least=1
    )
    metadata_log_max_snapshot_interval_ms: int = long(
        _HOUR_MS, "Longest wait for a snapshot if anything has changed since the last one; 0 is never.", at_least=0
    )
    auto_leader_rebalance_enable: bool = boolean(True, "Whether the controller elects preferred leaders automatically.")
    leader_imbalance_check_interval_seconds: int = long(
        300, "Time between two checks for leaders that are not preferred.", at_least=1
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        "Percentage of partitions not led by their preferred leader above which their leadership moves.",
        at_least=0,
        at_most=100,
    )
    controller_partitions_max: int = integer(200_000, "Most partitions in the cluster.", at_least=1)
    controller_brokers_max: int = integer(1_000, "Most registered brokers in the cluster.", at_least=1)
    controller_requests_max: int = integer(1_000, "Most changes that wait for their commit.", at_least=1)
