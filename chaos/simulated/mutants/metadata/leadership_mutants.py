"""Patches of the controller's part in replication: in-sync replicas, the members of a cluster, elections.

The rules are those of ``docs/replication.md``.
"""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_PARTITION: Final = "tidelog.replication.partition.partition"
_LEADER: Final = "tidelog.replication.partition.leader"
_ISR: Final = "tidelog.replication.partition.isr"
_CHANGE: Final = "tidelog.metadata_quorum.controller.partition_change"
_RECOVERY: Final = "tidelog.metadata_quorum.controller.unclean_recovery"
_BROKERS: Final = "tidelog.metadata_quorum.controller.broker_changes"
_CONTROLLER: Final = "tidelog.metadata_quorum.controller.controller"

_IN_SYNC: Final = (
    Mutant(
        id="joins-below-high-watermark",
        rule="R10",
        what="A replica joins the ISR before it has reached the high watermark.",
        module=_LEADER,
        old="            or follower.log_end_offset < high_watermark\n",
        new="",
        scenario="replication",
    ),
    Mutant(
        id="joins-before-epoch-start",
        rule="R10",
        what="A replica joins the ISR once it has reached a new leader's high watermark, which lags, but before it "
        "has reached the start of the leader's epoch (KAFKA-7128): it may lack what the former leader committed.",
        module=_LEADER,
        old="            or follower.log_end_offset < self.epoch_start\n",
        new="",
        scenario="replication",
    ),
    Mutant(
        id="isr-change-without-partition-epoch",
        rule="R11",
        what="The controller makes an ISR change that was decided under an older partition epoch: a delayed change "
        "takes in a replica that has left since.",
        module="tidelog.metadata_quorum.controller.isr_changes",
        old="    if item.partition_epoch < partition.partition_epoch:\n"
        "        return ErrorCode.INVALID_UPDATE_VERSION\n",
        new="",
        scenario="producers",
    ),
    Mutant(
        id="isr-change-sent-under-todays-epochs",
        rule="R11",
        what="A leader repeats an ISR change under the partition and broker epochs of the repetition, not those under "
        "which it was decided: it takes in a joiner that has come back with an empty disk since.",
        module="tidelog.replication.isr_changes",
        old="        proposal.members,\n        proposal.partition_epoch,\n",
        new="        tuple(IsrMember(node, leading._broker_epoch(node)) for node in proposal.isr),\n"
        "        leading.isr.partition_epoch,\n",
        scenario="unclean",
        more=(
            Edit(
                "tidelog.replication.isr_changes",
                "AlterPartitionItem, AlterPartitionResponse\n",
                "AlterPartitionItem, AlterPartitionResponse, IsrMember\n",
            ),
            Edit(
                _ISR,
                "        self.partition_epoch = partition_epoch\n        self._settle()\n",
                "        self.partition_epoch = partition_epoch\n"
                "        if self.proposal is None or set(isr) == set(self.proposal.isr):\n"
                "            self._settle()\n"
                "        else:\n"
                "            self.maximal = frozenset(isr)\n",
            ),
        ),
    ),
    Mutant(
        id="joiner-broker-epoch-not-checked",
        rule="R12",
        what="The controller takes a broker into an ISR whatever broker epoch the request names (before KIP-903): a "
        "late request takes in a process that has come back since without its data.",
        module="tidelog.metadata_quorum.controller.isr_changes",
        old="    return found.broker_epoch == member.broker_epoch and ",
        new="    return ",
        scenario="five-nodes",
    ),
    Mutant(
        id="joins-from-a-failed-directory",
        rule="R19",
        what="Neither the controller nor the leader checks a joiner's directory: the replica that was just removed is "
        "back within a millisecond, and records for an idle partition wait for it.",
        module="tidelog.metadata_quorum.controller.isr_changes",
        old=" and image.has_online_directory(member.node_id, partition)\n",
        new="\n",
        scenario="disk",
        more=(
            Edit(
                "tidelog.replication.manager",
                "        return self.broker_epoch_of(node) if self._has_directory(key, node) else BrokerEpoch(-1)\n",
                "        return self.broker_epoch_of(node)\n",
            ),
        ),
    ),
    Mutant(
        id="failed-directory-stays-in-sync",
        rule="R19",
        what="The controller records that a directory has failed, but leaves its replicas in their ISRs.",
        module=_BROKERS,
        old="            *self._leave_isrs(image, (node_id,), affected),\n",
        new="",
        scenario="disk",
    ),
)

_MEMBERS: Final = (
    Mutant(
        id="deposed-leader-goes-on",
        rule="R13",
        what="A leader that learns of a newer epoch with another leader keeps leading.",
        module=_PARTITION,
        old="        if state.leader_epoch > known.leader_epoch:\n",
        new="        if state.leader_epoch > known.leader_epoch and (self.leading is None or state.leader == "
        "self.node_id):\n",
        scenario="replication",
    ),
    Mutant(
        id="leader-epoch-not-raised",
        rule="R13",
        what="A new leader leads under its predecessor's epoch (brokers then rely on the change of leader): the two "
        "leaders' tails cannot be told apart.",
        module="tidelog.metadata_quorum.image.change",
        old="        leader_epoch=LeaderEpoch(partition.leader_epoch + (change.leader is not None)),\n",
        new="        leader_epoch=partition.leader_epoch,\n",
        scenario="replication",
        more=(
            Edit(
                _PARTITION,
                "        if state.leader_epoch > known.leader_epoch:\n",
                "        if state.leader_epoch > known.leader_epoch or state.leader != known.leader:\n",
            ),
        ),
    ),
    Mutant(
        id="fenced-broker-keeps-leading",
        rule="R14",
        what="A fenced broker keeps its leaderships and its places in the ISRs.",
        module=_BROKERS,
        old="        return [*self._leave_isrs(image, nodes, held), *records]\n",
        new="        return records\n",
        scenario="replication",
    ),
    Mutant(
        id="old-broker-epoch-acts",
        rule="R15",
        what="The controller attributes calls of a broker's former process to its present one (three checks that "
        "cover each other): a late heartbeat unfences a broker that has not asked for it, or shuts it down.",
        module="tidelog.metadata_quorum.controller.decision",
        old="    if found.broker_epoch != broker_epoch:\n"
        "        return Refusal(\n"
        "            ErrorCode.STALE_BROKER_EPOCH,\n"
        '            f"expected broker epoch {found.broker_epoch} of broker {node_id}, found {broker_epoch}",\n'
        "        )\n",
        new="",
        scenario="producers",
        more=(
            Edit(
                _CONTROLLER,
                "        is_committed = known is not None and known.broker_epoch == request.broker_epoch\n",
                "        is_committed = known is not None\n",
            ),
            Edit(_CONTROLLER, "        elif found.broker_epoch == request.broker_epoch:\n", "        else:\n"),
        ),
    ),
    Mutant(
        id="node-id-given-twice",
        rule="R15",
        what="A registration replaces a live process with the same node id.",
        module=_BROKERS,
        old="            and not existing.fenced\n            and has_valid_session\n",
        new="            and not existing.fenced\n            and not has_valid_session\n            and False\n",
        scenario="producers",
    ),
)

_ELECTION: Final = (
    Mutant(
        id="elects-outside-isr-and-elr",
        rule="R16",
        what="Without a safe candidate, the controller elects any live replica, as if unclean elections were allowed.",
        module=_CHANGE,
        old="    if election is Election.UNCLEAN:\n",
        new="    if election is not None:\n",
        scenario="unclean",
    ),
    Mutant(
        id="elr-kept-with-whole-isr",
        rule="R17",
        what="A replica that leaves an ISR that is large enough becomes eligible all the same, and stays so while the "
        "ISR commits without it (two places that cover each other).",
        module=_CHANGE,
        old="    if len(isr_next) >= min_isr:\n        return []\n",
        new="",
        scenario="unclean",
        more=(Edit(_CHANGE, "        elr_next = []\n        remembered = []\n", "        remembered = []\n"),),
    ),
    Mutant(
        id="unclean-broker-stays-eligible",
        rule="R17",
        what="A broker that returns after an unclean stop keeps its place in ELRs, although it may have lost its tail.",
        module=_BROKERS,
        old="            clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch\n",
        new="            clean = existing is not None\n",
        scenario="unclean",
    ),
    Mutant(
        id="clean-shutdown-believed-twice",
        rule="R18",
        what="The clean shutdown file is left in place and believed again after a kill: the logs skip recovery, and "
        "the controller does not compare its epoch (two checks that cover each other).",
        module="tidelog.storage.log.log_directory",
        old="        self._files.unlink(path)\n        self._files.fsync_dir(self.path)\n"
        "        return self.clean_epoch is not None\n",
        new="        return self.clean_epoch is not None\n",
        scenario="unclean",
        more=(
            Edit(
                _BROKERS,
                "            clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch\n",
                "            clean = existing is not None and request.previous_broker_epoch >= 0\n",
            ),
        ),
    ),
    Mutant(
        id="wiped-disk-stays-eligible",
        rule="R19",
        what="A broker whose only disk was replaced keeps its place in ELRs and is elected with an empty log; the "
        "others truncate theirs.",
        module=_BROKERS,
        old="                unclean=not clean,\n                wiped=wiped,\n",
        new="                unclean=not clean and not wiped,\n                wiped=False,\n",
        scenario="unclean",
    ),
    Mutant(
        id="offline-directory-may-lead",
        rule="R19",
        what="The controller does not check a replica's directory: it elects a replica whose disk has failed or is "
        "gone.",
        module="tidelog.metadata_quorum.controller.decision",
        old="        return image.has_online_directory(node_id, partition)\n",
        new="        return True\n",
        scenario="disk",
    ),
)

_RECOVERIES: Final = (
    Mutant(
        id="one-of-the-safe-remembered",
        rule="R28",
        what="The controller remembers only the first of the replicas that were safe before their unclean stops, and "
        "that one leads unquestioned: it may be the one that lost its tail (Kafka does the same with the last "
        "leader).",
        module=_CHANGE,
        old="    ]\n\n    recovering = (",
        new="    ][:1]\n\n    recovering = (",
        scenario="unclean",
    ),
    Mutant(
        id="shortest-log-recovers",
        rule="R29",
        what="Of the reported logs, the one with the lowest end leads.",
        module=_RECOVERY,
        old="        longest = max(asked,",
        new="        longest = min(asked,",
        scenario="unclean",
    ),
    Mutant(
        id="recovers-before-all-reported",
        rule="R29",
        what="The first of the safe replicas to report leads, whatever the others have.",
        module=_RECOVERY,
        old="        if now_ms - search.since_ms < self._timeout_ms:\n",
        new="        if now_ms < search.since_ms:\n",
        scenario="unclean",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_IN_SYNC, *_MEMBERS, *_ELECTION, *_RECOVERIES)
