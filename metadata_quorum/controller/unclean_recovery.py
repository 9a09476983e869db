"""Finds leaders for partitions if all safe candidates stopped uncleanly, by comparing their logs.

Source: the unclean recovery of KIP-966 (Kafka elects the last leader instead, whatever it lost). Every replica of such
a partition reports its last epoch and its log's end repeatedly until there is a leader. Reports are kept only in the
active controller's memory.

=====================================================  ================================================
every member of the last known ELR has reported        the replica with the greatest (last epoch, end)
                                                       leads, once the process that reported is live;
                                                       ISR = only it; recovery
the same, that replica is not live                     the election waits for it
``unclean.recovery.timeout.ms`` have passed            as if the others did not exist, if a live member
                                                       has reported
=====================================================  ================================================

Each member once had everything committed, and can have lost only a tail. A member that lost nothing still has all of
it, and so has every greater log: one with the same last epoch continues where the other ends, and one with a later
epoch descends from a leader that had everything committed before. So reports of replicas that are not members are
harmless too. A loser's report stays true while the partition has no leader, since its log cannot grow; the winner must
still hold the log that it reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates, leader_test, stale_epoch
from tidelog.metadata_quorum.controller.partition_change import asks_for_log_ends, change_partition
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicIdPartition
from tidelog.proto.calls.controller_api import ReportLogEndsRequest, ReportLogEndsResponse
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionChangeRecord, PartitionRecord


class _Report(NamedTuple):
    broker_epoch: BrokerEpoch
    reaches: tuple[LeaderEpoch, Offset]
    """The epoch of the log's last record, and the log's end."""


@dataclass(slots=True)
class _Search:
    """One leaderless partition, under one leader epoch."""

    leader_epoch: LeaderEpoch
    since_ms: int
    reports: dict[NodeId, _Report] = field(default_factory=dict)


class UncleanRecovery:
    """The log ends reported to the active controller. Bounded by the replicas of the partitions that ask for them."""

    def __init__(self, configs: ConfigView, timeout_ms: int) -> None:
        self._configs = configs
        self._timeout_ms = timeout_ms
        self._searches: dict[TopicIdPartition, _Search] = {}

    def reset(self) -> None:
        """Forget everything, because another controller is active, or this one is active again."""
        self._searches = {}

    def report(
        self, image: MetadataImage, request: ReportLogEndsRequest, now_ms: int
    ) -> Decision[ReportLogEndsResponse]:
        """Note a broker's reports, and elect if they complete the set. Ignores reports about an older leader epoch, or
        a partition that does not ask."""
        stale = stale_epoch(image, request.node_id, request.broker_epoch)
        if stale is not None:
            return Decision((), ReportLogEndsResponse(stale.code))
        updates = PartitionUpdates(image, self._configs)
        changes: dict[TopicIdPartition, MetadataRecord] = {}
        for found in request.ends:
            at = TopicIdPartition(found.topic_id, found.partition)
            partition = image.partition(*at)
            if partition is None or not asks_for_log_ends(partition) or request.node_id not in partition.replicas:
                continue
            if found.leader_epoch != partition.leader_epoch:
                continue
            search = self._search(at, partition, now_ms)
            search.reports[request.node_id] = _Report(request.broker_epoch, (found.last_epoch, found.end_offset))
            change = self._elect(image, updates, at, partition, search, now_ms)
            if change is not None:
                changes[at] = change
        return Decision(tuple(changes.values()), ReportLogEndsResponse(ErrorCode.NONE))

    def elect(self, image: MetadataImage, now_ms: int) -> list[MetadataRecord]:
        """Elect if only time was missing; call this about once a second."""
        updates = PartitionUpdates(image, self._configs)
        searches: dict[TopicIdPartition, _Search] = {}
        changes: list[MetadataRecord] = []
        for at in sorted(image.leaderless):
            partition = image.topics[at.topic_id].partitions[at.partition]
            if not asks_for_log_ends(partition):
                continue
            search = searches[at] = self._search(at, partition, now_ms)
            change = self._elect(image, updates, at, partition, search, now_ms)
            if change is not None:
                changes.append(change)
        self._searches = searches
        return changes

    def _search(self, at: TopicIdPartition, partition: PartitionRecord, now_ms: int) -> _Search:
        found = self._searches.get(at)
        if found is None or found.leader_epoch != partition.leader_epoch:
            found = self._searches[at] = _Search(partition.leader_epoch, now_ms)
        return found

    def _elect(
        self,
        image: MetadataImage,
        updates: PartitionUpdates,
        at: TopicIdPartition,
        partition: PartitionRecord,
        search: _Search,
        now_ms: int,
    ) -> PartitionChangeRecord | None:
        can_lead = leader_test(image, partition)
        reports = search.reports
        members = partition.last_known_elr
        ready = [
            node
            for node in (*members, *(other for other in partition.replicas if other not in members))
            if node in reports and can_lead(node) and image.brokers[node].broker_epoch == reports[node].broker_epoch
        ]
        if now_ms - search.since_ms < self._timeout_ms:
            asked = [*members, *(node for node in ready if node not in members)]
        else:
            asked = ready if any(node in members for node in ready) else []
        if not asked or not all(node in reports for node in asked):
            return None
        longest = max(asked, key=lambda node: reports[node].reaches)
        if longest not in ready:
            return None
        _, min_isr, election = updates.min_isr_and_election(at)
        return change_partition(partition, can_lead=can_lead, min_isr=min_isr, election=election, longest=longest)
