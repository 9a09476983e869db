"""Patches of how replicas are moved. Each takes away one rule of ``docs/controller.md``, "Moving replicas"."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_CHANGE: Final = "tidelog.metadata_quorum.controller.partition_change"

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
        module="tidelog.broker.metadata.reconciler",
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
    Mutant(
        id="drain-changes-the-factor",
        rule="KIP-860",
        what="The controller does not look at the number of replicas: a drain planned from an old view gives a "
        "partition the number that it had then.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        if not allow_factor_change and len(item.replicas) != target_now:\n",
        new="        if target_now < 0:\n",
        scenario="reassignment",
    ),
    Mutant(
        id="new-topics-on-a-drained-broker",
        rule="KIP-1066",
        what="The controller places replicas of new topics on cordoned brokers, too: a drain goes on without end.",
        module="tidelog.metadata_quorum.controller.topic_changes",
        old="        if not found.in_controlled_shutdown and not image.is_cordoned(node_id)\n",
        new="        if not found.in_controlled_shutdown\n",
        scenario="reassignment",
    ),
    Mutant(
        id="moves-onto-a-drained-broker",
        rule="KIP-1066",
        what="Whoever asks for it moves replicas onto a cordoned broker.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        if node not in present and image.is_cordoned(node):\n",
        new="        if node not in present and node < 0:\n",
        scenario="reassignment",
    ),
)
