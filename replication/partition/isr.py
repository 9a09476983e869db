"""The in-sync replicas of a partition as its leader knows them: the committed set and the proposed one.

States (``org.apache.kafka.server.partition.PartitionState``; KIP-497):

=============  ==============================================  ==========================================
state          leaves it by                                    to
=============  ==============================================  ==========================================
committed      :meth:`IsrState.propose`                        proposed
proposed       :meth:`IsrState.commit` of a newer epoch, or    committed (the set that the controller
               of the same epoch with the set asked for        named, whatever was asked for)
proposed       :meth:`IsrState.refused`, nothing uncertain     committed (the set as it was)
proposed       :meth:`IsrState.refused` after an attempt       proposed: the earlier attempt may yet take
               whose outcome is unknown                        effect, so it is asked again; committed after
                                                               ``REFUSALS_AFTER_UNKNOWN`` refusals in a row
=============  ==============================================  ==========================================

While a change is proposed, the leader uses the *maximal* set: a record counts as committed only if all members of both
sets have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.ids import NodeId, PartitionEpoch
from tidelog.proto.calls.controller_api import IsrMember

REFUSALS_AFTER_UNKNOWN: Final = 8
"""With the pauses between attempts this takes several seconds, longer than a lost request survives in a network."""


@dataclass(slots=True, eq=False)
class IsrProposal:
    """A change of the ISR that the leader has requested from the controller, or will request.

    ``members`` with their broker epochs, and ``partition_epoch``, are those at the time of the decision, and stay the
    same through every retry: a member that has restarted since, perhaps with an empty disk, must be refused
    (``test_a_joiner_that_lost_its_disk_while_it_was_proposed``). ``uncertain``: the outcome of an attempt is unknown.
    """

    members: tuple[IsrMember, ...]
    partition_epoch: PartitionEpoch
    uncertain: bool = False
    refusals: int = 0

    @property
    def isr(self) -> tuple[NodeId, ...]:
        return tuple(member.node_id for member in self.members)


class IsrState:
    """The ISR's state. Only the leader's partition writes it. Epochs only rise."""

    __slots__ = ("committed", "maximal", "partition_epoch", "proposal")

    def __init__(self, isr: tuple[NodeId, ...], partition_epoch: PartitionEpoch) -> None:
        self.committed = isr
        self.partition_epoch = partition_epoch
        self.proposal: IsrProposal | None = None
        self.maximal: frozenset[NodeId] = frozenset(isr)
        """Every node that is in the committed or in the proposed set."""

    def propose(self, members: tuple[IsrMember, ...]) -> IsrProposal:
        """Propose another ISR; one change at a time."""
        assert self.proposal is None, "a second ISR change while one is in flight"
        self.proposal = IsrProposal(members, self.partition_epoch)
        self.maximal = frozenset(self.committed) | frozenset(self.proposal.isr)
        return self.proposal

    def commit(self, isr: tuple[NodeId, ...], partition_epoch: PartitionEpoch) -> bool:
        """Apply the controller's decision. Returns False if it is outdated."""
        if partition_epoch < self.partition_epoch:
            return False
        if partition_epoch == self.partition_epoch:
            assert set(isr) == set(self.committed), "two ISRs under one partition epoch"
            if self.proposal is not None and set(isr) != set(self.proposal.isr):
                return False
        self.committed = isr
        self.partition_epoch = partition_epoch
        self._settle()
        return True

    def refused(self, proposal: IsrProposal) -> bool:
        """Note that the controller will certainly not make this change. Returns False if that settles nothing."""
        if proposal is not self.proposal:
            return False
        proposal.refusals += 1
        if proposal.uncertain and proposal.refusals < REFUSALS_AFTER_UNKNOWN:
            return False
        self._settle()
        return True

    def _settle(self) -> None:
        self.proposal = None
        self.maximal = frozenset(self.committed)
