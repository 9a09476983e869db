"""The one place that decides how a partition's ISR, eligible leader replicas and leader change.

Source: Kafka's ``PartitionChangeBuilder``, KIP-966 (eligible leader replicas), KIP-704 (leader recovery),
KIP-858 (directories), KIP-455 (reassignment). In words:

====================================================  ==============================================
the new ISR has at least min ISR members              ELR becomes empty
it has fewer                                          a replica that leaves the ISR joins the ELR, unless
                                                      it stopped uncleanly; ELR members stay
a leader is in the ISR, live, directory online        it stays
else                                                  the first such replica of the ISR (of the ELR
                                                      when the ISR is empty) leads, leader epoch +1
elected from the ELR                                  ISR = only it
it has fewer, and a leaving one stopped uncleanly     it is remembered as last known ELR
ISR and ELR empty, one is remembered and live         it leads; ISR = only it; recovery
ISR and ELR empty, several are remembered             the one with the longest log leads
                                                      (:mod:`tidelog.metadata_quorum.controller.unclean_recovery`)
unclean elections allowed                             else the first live replica leads; the same
else                                                  leader none, leader epoch +1
all replicas being added are in the ISR, and at       the reassignment is complete: the replicas being
least min ISR of its members stay                     removed go, from ISR, ELR and last known ELR too
a replica goes                                        leader epoch +1, even if the leader stays
====================================================  ==============================================

The ELR is sound because a leader does not advance the high watermark while its ISR is below min ISR: every replica that
was in the ISR when it last had min ISR members has everything committed. The last known ELR holds the replicas that
would be eligible without their unclean stop: each of them had everything committed, and may have lost a tail since. It
is cleared with the ELR. Kafka remembers only the last leader, although any of them may be the one that lost nothing.
Replicas with a replaced disk are not in it, and an elected leader must be live.

A leader must forget the position of a removed replica: if the replica comes back before the leader hears of either
change, it has an empty log. The newer leader epoch makes the leader forget
(``test_a_replica_that_goes_and_comes_back_is_not_taken_for_what_it_was``).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.model.ids import NO_NODE, UNASSIGNED_DIRECTORY, DirectoryId, NodeId
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.logs.metadata_records import DirectoryList, NodeList, PartitionChangeRecord, PartitionRecord


class Election(enum.Enum):
    """How to choose the leader (``PartitionChangeBuilder.Election``)."""

    ONLINE = "online"
    """The current leader while it can lead, else any safe replica."""
    PREFERRED = "preferred"
    """The first replica if it is safe, else as ONLINE."""
    UNCLEAN = "unclean"
    """Like ONLINE, but choose any live replica rather than none."""


class _Elected(NamedTuple):
    node_id: NodeId
    unclean: bool


_NOBODY: Final = _Elected(NO_NODE, False)


class Assignment(NamedTuple):
    """The replicas of a moving partition: all of them, those being added and those being removed."""

    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()


def change_partition(
    partition: PartitionRecord,
    *,
    can_lead: Callable[[NodeId], bool],
    min_isr: int,
    election: Election = Election.ONLINE,
    isr: Sequence[NodeId] | None = None,
    unclean: Collection[NodeId] = (),
    wiped: Collection[NodeId] = (),
    directories: Mapping[NodeId, DirectoryId] | None = None,
    longest: NodeId = NO_NODE,
    recovered: bool = False,
    assignment: Assignment | None = None,
) -> PartitionChangeRecord | None:
    """Return the record that changes ``partition``, or ``None`` if nothing changes.

    ``can_lead``: whether a broker is live and its replica's directory online. ``min_isr``: the configured value;
    :func:`tidelog.model.replica_counts.effective_min_isr` gives the effective one. ``assignment``: other replicas, or
    the end of a move; any change ends a complete reassignment. ``isr``: the new ISR; by default the current one.
    ``unclean``: brokers that stopped without a clean shutdown; they leave ISR and ELR. ``wiped``: brokers with a
    replica that lost its data; like ``unclean``, and the last known ELR drops them too. ``directories``: the replicas'
    new directories. ``longest``: the replica with the longest log, if the logs were compared because no replica is
    safe. ``recovered``: the leader has finished KIP-704's recovery.
    """
    gone = {*unclean, *wiped}
    before = partition
    isr_next = [node for node in (partition.isr if isr is None else isr) if node not in gone]
    if assignment is not None:
        partition = _assigned(partition, assignment)
    partition = _assigned(partition, _completed(partition, isr_next, min_isr))
    effective = _effective(partition, min_isr)
    isr_next = [node for node in isr_next if node in partition.replicas]
    elr_next = _eligible(partition, isr_next, gone, effective)
    remembered = [node for node in _had_everything(partition) if node not in wiped]

    elected = _elect(partition, isr_next, elr_next, remembered, can_lead, election, longest)
    leader_changes = elected.node_id != partition.leader
    if leader_changes and elected.node_id in elr_next:
        isr_next = [elected.node_id]
    elif leader_changes and elected.unclean:
        isr_next = [elected.node_id]
        elr_next = []
    partition = _assigned(partition, _completed(partition, isr_next, min_isr))  # a single elected one may be enough
    if len(isr_next) >= _effective(partition, min_isr):
        elr_next = []
        remembered = []
    elr_next = [node for node in elr_next if node not in isr_next and node in partition.replicas]
    last_known = [
        node for node in remembered if node not in isr_next and node not in elr_next and node in partition.replicas
    ]

    recovering = (partition.leader_recovery and not recovered) or (leader_changes and elected.unclean)
    placed = _placed(partition, directories)
    some_go = any(node not in partition.replicas for node in before.replicas)

    change = PartitionChangeRecord(
        topic_id=partition.topic_id,
        partition=partition.partition,
        isr=_changed(before.isr, isr_next),
        leader=elected.node_id if leader_changes or some_go else None,
        replicas=_changed(before.replicas, partition.replicas),
        eligible_leader_replicas=_changed(before.eligible_leader_replicas, elr_next),
        last_known_elr=_changed(before.last_known_elr, last_known),
        removing_replicas=_changed(before.removing_replicas, partition.removing_replicas),
        adding_replicas=_changed(before.adding_replicas, partition.adding_replicas),
        leader_recovery=recovering if recovering != before.leader_recovery else None,
        directories=DirectoryList(placed) if placed != before.directories else None,
    )
    return None if _says_nothing(change) else change


def _effective(partition: PartitionRecord, min_isr: int) -> int:
    return effective_min_isr(min_isr, partition.replicas, partition.adding_replicas, partition.removing_replicas)


def _completed(partition: PartitionRecord, isr: Sequence[NodeId], min_isr: int) -> Assignment:
    """Return the current assignment, or the final one once all new replicas are in sync and enough of the others remain
    (``PartitionReassignmentReplicas.maybeCompleteReassignment``; requiring min ISR of them is ours: committed records
    stay on no fewer replicas than acknowledged them)."""
    present = Assignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)
    if not (present.adding or present.removing):
        return present
    target = tuple(node for node in present.replicas if node not in present.removing)
    in_sync = [node for node in isr if node in target]
    if len(in_sync) < min(min_isr, len(target)) or not set(present.adding) <= set(in_sync):
        return present
    return Assignment(target)


def _assigned(partition: PartitionRecord, assignment: Assignment) -> PartitionRecord:
    """Return the partition with these replicas; the directories of new ones are unknown."""
    if assignment == (partition.replicas, partition.adding_replicas, partition.removing_replicas):
        return partition
    known = dict(zip(partition.replicas, partition.directories, strict=True))
    return dataclasses.replace(
        partition,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
        directories=tuple(known.get(node, UNASSIGNED_DIRECTORY) for node in assignment.replicas),
    )


def _eligible(
    partition: PartitionRecord, isr_next: Sequence[NodeId], gone: Collection[NodeId], min_isr: int
) -> list[NodeId]:
    """Return the ELR for ``isr_next``, in replica order (``maybePopulateTargetElr``)."""
    if len(isr_next) >= min_isr:
        return []
    candidates = {*partition.eligible_leader_replicas, *partition.isr}
    return [node for node in partition.replicas if node in candidates and node not in isr_next and node not in gone]


def _had_everything(partition: PartitionRecord) -> list[NodeId]:
    """Return the replicas that have, or had before an unclean stop, everything committed; in replica order. True while
    the ISR is below min ISR: nothing is committed meanwhile."""
    found = {*partition.isr, *partition.eligible_leader_replicas, *partition.last_known_elr}
    return [node for node in partition.replicas if node in found]


def asks_for_log_ends(partition: PartitionRecord) -> bool:
    """Return whether a partition has no leader and no safe candidate, so that several replicas' logs must be compared
    to find the smallest loss."""
    return (
        partition.leader == NO_NODE
        and not partition.isr
        and not partition.eligible_leader_replicas
        and len(partition.last_known_elr) > 1
    )


def _elect(
    partition: PartitionRecord,
    isr: Sequence[NodeId],
    elr: Sequence[NodeId],
    remembered: Sequence[NodeId],
    can_lead: Callable[[NodeId], bool],
    election: Election,
    longest: NodeId,
) -> _Elected:
    safe = isr or elr
    preferred = partition.replicas[0]
    if election is Election.PREFERRED and preferred in safe and can_lead(preferred):
        return _Elected(preferred, False)
    if partition.leader in safe and can_lead(partition.leader):
        return _Elected(partition.leader, False)
    for node in partition.replicas:
        if node in safe and can_lead(node):
            return _Elected(node, False)
    if not safe and len(remembered) == 1:
        longest = remembered[0]
    if not safe and longest != NO_NODE and can_lead(longest):
        return _Elected(longest, True)
    if election is Election.UNCLEAN:
        # A replica that is still being added may be empty.
        settled = [node for node in partition.replicas if node not in partition.adding_replicas]
        for node in (*remembered, *settled, *partition.adding_replicas):
            if can_lead(node):
                return _Elected(node, True)
    return _NOBODY


def _placed(partition: PartitionRecord, directories: Mapping[NodeId, DirectoryId] | None) -> tuple[DirectoryId, ...]:
    if not directories:
        return partition.directories
    return tuple(
        directories.get(node, before) for node, before in zip(partition.replicas, partition.directories, strict=True)
    )


def _changed(before: Sequence[NodeId], after: Sequence[NodeId]) -> NodeList | None:
    return None if tuple(before) == tuple(after) else NodeList(tuple(after))


def _says_nothing(change: PartitionChangeRecord) -> bool:
    return (
        change.isr is None
        and change.leader is None
        and change.replicas is None
        and change.removing_replicas is None
        and change.adding_replicas is None
        and change.eligible_leader_replicas is None
        and change.last_known_elr is None
        and change.leader_recovery is None
        and change.directories is None
    )
