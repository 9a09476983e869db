"""Elections that an operator requests.

Source: KIP-183, KIP-460 and Kafka's ``ReplicationControlManager.electLeaders``:

===========  =======================================  ==================================================
election     the partition                            outcome
===========  =======================================  ==================================================
preferred    is led by its first replica              ELECTION_NOT_NEEDED
preferred    its first replica is live and in the     it leads
             ISR (in the ELR while the ISR is empty)
preferred    else                                     PREFERRED_LEADER_NOT_AVAILABLE
unclean      has a leader                             ELECTION_NOT_NEEDED
unclean      has a live replica                       it leads: a safe one if there is one, else one of
                                                      the last known ELR, else one that is not being
                                                      added, else any
unclean      else                                     ELIGIBLE_LEADERS_NOT_AVAILABLE
===========  =======================================  ==================================================
"""

from __future__ import annotations

from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision, PartitionUpdates, leader_test
from tidelog.metadata_quorum.controller.partition_change import Election, change_partition
from tidelog.metadata_quorum.controller.reassignment import named_partition
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_NODE, TopicIdPartition
from tidelog.proto.calls.reassignment_api import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    NamedPartition,
    PartitionResult,
)
from tidelog.proto.logs.metadata_records import MetadataRecord, PartitionChangeRecord, PartitionRecord

_ELECTIONS: Final = {PREFERRED: Election.PREFERRED, UNCLEAN: Election.UNCLEAN}


def elect_leaders(
    image: MetadataImage, configs: ConfigView, request: ElectLeadersRequest
) -> Decision[ElectLeadersResponse]:
    """Decide each partition individually; see the table above. An unknown election type is refused as
    INVALID_REQUEST."""
    election = _ELECTIONS.get(request.election)
    if election is None:
        text = f"expected an election of {' or '.join(_ELECTIONS)}, found {request.election!r}"
        return Decision((), ElectLeadersResponse(ErrorCode.INVALID_REQUEST, error_message=text))
    named = _every_partition(image) if request.all_partitions else list(dict.fromkeys(request.partitions))
    updates = PartitionUpdates(image, configs)
    records: list[MetadataRecord] = []
    results: list[PartitionResult] = []
    for item in named:
        partition = named_partition(image, item.topic, item.partition)
        outcome = partition if isinstance(partition, Refusal) else _elect(image, updates, partition, election)
        if isinstance(outcome, PartitionChangeRecord):
            records.append(outcome)
            results.append(PartitionResult(item.topic, item.partition, ErrorCode.NONE))
        elif not (request.all_partitions and outcome.code is ErrorCode.ELECTION_NOT_NEEDED):
            results.append(PartitionResult(item.topic, item.partition, outcome.code, outcome.message))
    return Decision(tuple(records), ElectLeadersResponse(ErrorCode.NONE, tuple(results)))


def _every_partition(image: MetadataImage) -> list[NamedPartition]:
    return [
        NamedPartition(name, partition.partition)
        for name in sorted(image.topic_ids)
        for partition in image.topics[image.topic_ids[name]].in_order()
    ]


def _elect(
    image: MetadataImage, updates: PartitionUpdates, partition: PartitionRecord, election: Election
) -> PartitionChangeRecord | Refusal:
    preferred = partition.replicas[0]
    is_preferred = election is Election.PREFERRED
    if partition.leader == (preferred if is_preferred else partition.leader) != NO_NODE:
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"node {partition.leader} leads already")
    at = TopicIdPartition(partition.topic_id, partition.partition)
    can_lead = leader_test(image, partition)
    _, min_isr, _ = updates.min_isr_and_election(at)
    change = change_partition(partition, can_lead=can_lead, min_isr=min_isr, election=election)
    leader = NO_NODE if change is None or change.leader is None else change.leader
    if change is not None and leader != NO_NODE and (leader == preferred or not is_preferred):
        return change
    if not is_preferred:
        return Refusal(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"expected a live broker among {list(partition.replicas)}, found none",
        )
    found = "not live" if not can_lead(preferred) else f"not among the in-sync replicas {list(partition.isr)}"
    return Refusal(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"expected the first replica, node {preferred}, live and in sync, found it {found}",
    )
