"""Patches of how replicas are moved. Each takes away one rule of ``docs/controller.md``, "Moving replicas"."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.sim.mutants.mutant import Mutant

_CHANGE: Final = "tidelog.metadata_quorum.partition_change"

MUTANTS: Final = (
    Mutant(
        id="reassignment-ends-too-early",
        rule="KIP-455",
        what="A reassignment ends at once, whether or not those that are added are in sync: they are taken for "
        "it, and one of them may lead with an empty log.",
        module=_CHANGE,
        old="    isr_next = [node for node in isr_next if node in partition.replicas]\n",
        new="    if partition.replicas != before.replicas and assignment is not None:\n"
        "        stay = tuple(node for node in partition.replicas if node not in partition.removing_replicas)\n"
        "        partition = _assigned(partition, Assignment(stay))\n"
        "        isr_next = list(partition.replicas)\n"
        "    isr_next = [node for node in isr_next if node in partition.replicas]\n",
        scenario="reassignment",
    ),
    Mutant(
        id="removed-log-goes-too-early",
        rule="KIP-455",
        what="A broker lets go of a replica, and of its log, as soon as it is to be removed, not once the controller "
        "has taken it away: while it is still in the ISR, or leads.",
        module="tidelog.broker.reconciler",
        old="        if found is None or node_id not in found.replicas:\n            if was_here:\n",
        new="        if found is None or node_id not in found.replicas or node_id in found.removing_replicas:\n"
        "            if was_here:\n",
        scenario="reassignment",
    ),
    Mutant(
        id="replica-goes-unnoticed",
        rule="leader epoch",
        what="The leader epoch stays when a replica goes: a leader that hears of its going and coming back together "
        "counts on what the old one had.",
        module=_CHANGE,
        old="        leader=elected.node_id if leader_changes or some_go else None,\n",
        new="        leader=elected.node_id if leader_changes else None,\n",
        scenario="reassignment",
    ),
)
