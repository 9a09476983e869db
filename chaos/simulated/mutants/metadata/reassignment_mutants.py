"""Patches of how replicas are moved and brokers unregistered. Each takes away one rule of ``docs/controller.md``."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_CHANGE: Final = "tidelog.metadata_quorum.controller.partition_change"
_BROKERS: Final = "tidelog.metadata_quorum.controller.broker_changes"

mutant: Final = partial(Mutant, scenario="reassignment")
"""Where most of them are seen; the others say where."""

MUTANTS: Final = (
    mutant(
        id="reassignment-ends-too-early",
        rule="KIP-455",
        what="A reassignment ends immediately, whether or not the added replicas are in sync: they count as if they "
        "were, and one of them may lead with an empty log.",
        module=_CHANGE,
        old="    isr_next = [node for node in isr_next if node in partition.replicas]\n",
        new="    if partition.replicas != before.replicas and assignment is not None:\n"
        "        stay = tuple(node for node in partition.replicas if node not in partition.removing_replicas)\n"
        "        partition = _assigned(partition, Assignment(stay))\n"
        "        isr_next = list(partition.replicas)\n"
        "    isr_next = [node for node in isr_next if node in partition.replicas]\n",
    ),
    mutant(
        id="removed-log-goes-too-early",
        rule="KIP-455",
        what="A broker drops a replica and its log as soon as the replica is to be removed, not once the controller "
        "has removed it: while it is still in the ISR, or leads.",
        module="tidelog.broker.metadata.reconciler",
        old="        if found is None or node_id not in found.replicas:\n            if was_here:\n",
        new="        if found is None or node_id not in found.replicas or node_id in found.removing_replicas:\n"
        "            if was_here:\n",
    ),
    mutant(
        id="replica-goes-unnoticed",
        rule="leader epoch",
        what="The leader epoch does not change when a replica is removed: a leader that learns of its removal and "
        "return together relies on what the old one had.",
        module=_CHANGE,
        old="        leader=elected.node_id if leader_changes or some_go else None,\n",
        new="        leader=elected.node_id if leader_changes else None,\n",
    ),
    mutant(
        id="move-ends-with-too-few",
        rule="min ISR",
        what="A reassignment ends once the new replicas are in sync, however few of the remaining ones are: committed "
        "records are then on fewer replicas than acknowledged them.",
        module=_CHANGE,
        old="    if len(in_sync) < min(min_isr, len(target)) or not set(present.adding) <= set(in_sync):\n",
        new="    if not set(present.adding) <= set(in_sync):\n",
    ),
    mutant(
        id="wish-leaves-too-few",
        rule="min ISR",
        what="A cancelled or changed reassignment drops replicas immediately, although too few of the others have "
        "what is committed.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        text = _too_few_left(partition, wanted, min_isr)\n",
        new="        text = None\n",
    ),
    mutant(
        id="drain-changes-the-factor",
        rule="KIP-860",
        what="The controller does not check the number of replicas: a drain planned from an old view gives a "
        "partition the number that it had then.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        if not allow_factor_change and len(item.replicas) != target_now:\n",
        new="        if target_now < 0:\n",
    ),
    mutant(
        id="new-topics-on-a-drained-broker",
        rule="KIP-1066",
        what="The controller places replicas of new topics on cordoned brokers too: a drain never ends.",
        module="tidelog.metadata_quorum.controller.topic_changes",
        old="        if not found.in_controlled_shutdown and not image.is_cordoned(node_id)\n",
        new="        if not found.in_controlled_shutdown\n",
    ),
    mutant(
        id="moves-onto-a-drained-broker",
        rule="KIP-1066",
        what="A request to move replicas onto a cordoned broker is granted.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        if node not in present and image.is_cordoned(node):\n",
        new="        if node not in present and node < 0:\n",
    ),
    mutant(
        id="live-broker-is-unregistered",
        rule="unregistering",
        what="The controller unregisters a live broker that leads and is in sync.",
        module=_BROKERS,
        old="        if not found.fenced:\n            text",
        new="        if found.fenced is None:\n            text",
        scenario="removal",
    ),
    mutant(
        id="epoch-of-a-removed-broker-is-given-again",
        rule="KIP-631",
        what="The next broker epoch follows the highest of the registered brokers: one that was unregistered gets its "
        "own epoch again, and its former process's requests are granted.",
        module=_BROKERS,
        old="            broker_epoch = BrokerEpoch(image.broker_epoch_highest + 1)\n",
        new="            known = [found.broker_epoch for found in image.brokers.values()]\n"
        "            broker_epoch = BrokerEpoch(max(known, default=0) + 1)\n",
        scenario="removal",
    ),
    mutant(
        id="removed-broker-comes-back-clean",
        rule="KIP-966",
        what="A broker that registers under an unregistered id counts as stopped cleanly: it may lead without loss, "
        "although it may have another disk.",
        module=_BROKERS,
        old="            clean = existing is not None and request",
        new="            clean = existing is None or request",
        scenario="removal",
    ),
    mutant(
        id="cordon-outlives-its-broker",
        rule="KIP-1066",
        what="The cordon of a drained broker survives its unregistration: another broker with its id gets no replicas.",
        module=_BROKERS,
        old="        if image.is_cordoned(request.node_id):\n",
        new="        if image.is_cordoned(NodeId(-1)):\n",
        scenario="removal",
    ),
    mutant(
        id="heartbeats-of-a-removed-broker-are-taken",
        rule="KIP-631",
        what="A broker that was unregistered while it was silent is not told so, and never registers again.",
        module=_BROKERS,
        old="        stale = stale_epoch(image, request.node_id, request.broker_epoch)\n"
        "        if stale is not None:\n",
        new="        stale = stale_epoch(image, request.node_id, request.broker_epoch)\n"
        "        if image.broker(request.node_id) is None:\n"
        "            return Decision((), BrokerHeartbeatResponse(ErrorCode.NONE, is_caught_up=True))\n"
        "        if stale is not None:\n",
        scenario="removal",
    ),
    mutant(
        id="replicas-on-a-removed-broker",
        rule="KIP-455",
        what="Replicas are moved to a broker that was unregistered: nobody is there to take them.",
        module="tidelog.metadata_quorum.controller.reassignment",
        old="        if image.broker(node) is None:\n",
        new="        if node < 0:\n",
        scenario="removal",
    ),
)
