"""Patches of replication, of the controller's part in it, of the log under it and of the client before it.

Each takes one rule of ``docs/replication.md`` away (R1 and following), most of them bugs that Kafka had
once. Rules that cover each other go together, and ``what`` says so.
"""

from __future__ import annotations

from typing import Final

from tidelog.chaos.sim.mutants.mutant import Edit, Mutant

_PARTITION: Final = "tidelog.replication.partition"
_LEADER: Final = "tidelog.replication.leader"
_ISR: Final = "tidelog.replication.isr"
_FETCHER: Final = "tidelog.replication.fetcher"
_CHANGE: Final = "tidelog.metadata_quorum.partition_change"
_RECOVERY: Final = "tidelog.metadata_quorum.unclean_recovery"
_BROKERS: Final = "tidelog.metadata_quorum.broker_changes"
_CONTROLLER: Final = "tidelog.metadata_quorum.controller"
_LOG: Final = "tidelog.storage.log"
_CHECKS: Final = "tidelog.storage.append_checks"
_PRODUCERS: Final = "tidelog.storage.producer_state"
_QUEUE: Final = "tidelog.client.partition_queue"

_NO_EPOCH_COMPARED: Final = Edit(
    _LEADER,
    "        if last_fetched_epoch >= 0 and start <= fetch_offset:\n",
    "        if False:\n",
)
_EPOCH_OF_ANSWER_NOT_COMPARED: Final = Edit(
    _PARTITION,
    "        if item.current_leader_epoch != following.epoch:\n"
    "            return Fetched.RETRY if item.error is not ErrorCode.NONE else Fetched.STALE\n",
    "",
)
_HIGH_WATERMARK_BELOW_MIN_ISR: Final = Edit(
    _LEADER,
    "        if len(isr.committed) < min_isr:\n            return NO_OFFSET\n",
    "",
)

_TRUNCATION: Final = (
    Mutant(
        id="truncates-to-high-watermark",
        rule="R1",
        what="A new follower cuts its log to its own high watermark, which lags, and no epochs are compared (KIP-101): "
        "an in-sync replica throws committed records away, and may be elected before it has them again.",
        module=_PARTITION,
        old="        if state.leader != self.node_id:\n            self.following =",
        new="        if state.leader != self.node_id:\n            self._truncate(self.high_watermark)\n"
        "            self.following =",
        scenario="replication",
        more=(_NO_EPOCH_COMPARED,),
    ),
    Mutant(
        id="leader-epochs-not-compared",
        rule="R1",
        what="Nobody compares leader epochs when fetching, neither of requests, answers and records nor of the "
        "logs themselves (four checks that cover each other): a deposed leader keeps its own tail under the new log.",
        module=_PARTITION,
        old="        if leader_epoch >= 0:\n            if leader_epoch < known:\n",
        new="        if leader_epoch < -1:\n            if leader_epoch < known:\n",
        scenario="replication",
        more=(
            _EPOCH_OF_ANSWER_NOT_COMPARED,
            Edit(_PARTITION, "leader_epoch_max=following.epoch)", "leader_epoch_max=None)"),
            _NO_EPOCH_COMPARED,
        ),
    ),
    Mutant(
        id="single-epoch-lookup",
        rule="R2",
        what="A follower that does not know the epoch which the leader names cuts to that epoch's end all the same, "
        "and the leader asks for no second round (KIP-279): two logs differ below the cut for ever.",
        module="tidelog.replication.follower",
        old="    if own_epoch != diverging_epoch:\n        return Offset(min(own_end, end))\n",
        new="    if own_epoch != diverging_epoch:\n        return Offset(min(diverging_end, end))\n",
        scenario="unclean",
        more=(
            Edit(
                _LEADER,
                "            if epoch < last_fetched_epoch or epoch_end < fetch_offset:\n",
                "            if epoch_end < fetch_offset:\n",
            ),
        ),
    ),
)

_HIGH_WATERMARK: Final = (
    Mutant(
        id="high-watermark-of-fastest-replica",
        rule="R3",
        what="The high watermark follows the fastest replica, in the ISR or not, instead of the slowest member.",
        module=_LEADER,
        old="        for follower in self.followers.values():\n"
        "            if follower.log_end_offset < end and "
        "(follower.node in maximal or self._is_joining(follower, now_ms)):\n"
        "                end = follower.log_end_offset\n"
        "        return end\n",
        new="        fastest = max((follower.log_end_offset for follower in self.followers.values()), default=end)\n"
        "        return end if end < fastest or not maximal else fastest\n",
        scenario="replication",
    ),
    Mutant(
        id="high-watermark-passes-who-joins",
        rule="R3",
        what="The high watermark does not wait for a replica that the leader has asked to take in, nor for one that "
        "keeps up and may join (two rules that cover each other): it is in the ISR without what was committed.",
        module=_LEADER,
        old="        maximal = isr.maximal\n",
        new="        maximal = frozenset(isr.committed)\n",
        scenario="replication",
        more=(
            Edit(
                _LEADER, "(follower.node in maximal or self._is_joining(follower, now_ms))", "follower.node in maximal"
            ),
        ),
    ),
    Mutant(
        id="isr-shrink-counted-when-asked",
        rule="R4",
        what="A leader stops waiting for a member as soon as it has asked to drop it: the controller may never hear of "
        "that, and elects the one that was not waited for.",
        module=_ISR,
        old="        self.maximal = frozenset(self.committed) | frozenset(self.proposal.isr)\n",
        new="        self.maximal = frozenset(self.proposal.isr)\n",
        scenario="replication",
    ),
    Mutant(
        id="high-watermark-below-min-isr",
        rule="R5",
        what="The last replica standing goes on raising the high watermark alone (before KIP-966): consumers read what "
        "a "
        "clean election of an eligible replica then loses.",
        module=_HIGH_WATERMARK_BELOW_MIN_ISR.module,
        old=_HIGH_WATERMARK_BELOW_MIN_ISR.old,
        new=_HIGH_WATERMARK_BELOW_MIN_ISR.new,
        scenario="unclean",
    ),
    Mutant(
        id="new-leader-commits-its-tail",
        rule="R6",
        what="Who is elected takes its log's end for the high watermark: what no other replica has is shown to "
        "consumers.",
        module=_PARTITION,
        old="        self.leading = LeaderState(\n            self.node_id,\n",
        new="        self.high_watermark = self.log.log_end_offset\n"
        "        self.leading = LeaderState(\n            self.node_id,\n",
        scenario="replication",
    ),
    Mutant(
        id="follower-positions-outlive-the-epoch",
        rule="R6",
        what="A leader that is elected again counts its followers where they stood when it led last, though they have "
        "cut their logs since.",
        module=_PARTITION,
        old='        "_lag_time_max_ms",\n',
        new='        "_lag_time_max_ms",\n        "_led_before",\n',
        scenario="replication",
        more=(
            Edit(
                _PARTITION,
                "        self.leading: LeaderState | None = None\n",
                "        self.leading: LeaderState | None = None\n"
                "        self._led_before: LeaderState | None = None\n",
            ),
            Edit(
                _PARTITION,
                "        state = self.state\n        self.leading = ",
                "        state = self.state\n        self._led_before = self.leading or self._led_before\n"
                "        self.leading = ",
            ),
            Edit(
                _PARTITION,
                '        """Stop leading until a newer leader epoch says otherwise."""\n',
                '        """Stop leading until a newer leader epoch says otherwise."""\n'
                "        self._led_before = self.leading or self._led_before\n",
            ),
            Edit(
                _PARTITION,
                "        return RoleChange.LEADER\n",
                "        if self._led_before is not None:\n"
                "            for node, progress in self._led_before.followers.items():\n"
                "                if node in self.leading.followers:\n"
                "                    self.leading.followers[node] = progress\n"
                "        return RoleChange.LEADER\n",
            ),
        ),
    ),
    Mutant(
        id="high-watermark-beyond-the-log",
        rule="R6",
        what="A stored high watermark is believed though the log behind it was lost with the power (two checks that "
        "cover each other): a leader answers acks=all at once, for records nobody else has.",
        module=_PARTITION,
        old="Offset(max(log.log_start_offset, min(high_watermark, log.log_end_offset)))",
        new="Offset(max(log.log_start_offset, high_watermark))",
        scenario="unclean",
        more=(
            Edit(
                "tidelog.storage.log_manager",
                "            key: Offset(min(offset, log.log_end_offset))\n",
                "            key: offset\n",
            ),
        ),
    ),
)

_ACKNOWLEDGEMENT: Final = (
    Mutant(
        id="acks-all-at-append",
        rule="R7",
        what="acks=all is answered when the leader has appended, before the high watermark has passed the batch.",
        module="tidelog.replication.producing",
        old="                if replica.partition.high_watermark < required:\n",
        new="                if required < 0:\n",
        scenario="replication",
    ),
    Mutant(
        id="min-isr-not-checked",
        rule="R7",
        what="min.insync.replicas counts neither at the append, nor for the high watermark, nor for the answer (three "
        "checks that cover each other): the last replica acknowledges acks=all alone.",
        module=_PARTITION,
        old="        if acks == -1 and (in_sync := len(leading.isr.committed)) < self.min_isr:\n",
        new="        if not (in_sync := len(leading.isr.committed)):\n",
        scenario="unclean",
        more=(
            _HIGH_WATERMARK_BELOW_MIN_ISR,
            Edit(
                _PARTITION,
                "        if len(leading.isr.maximal) < self.min_isr:\n",
                "        if not leading.isr.maximal:\n",
            ),
        ),
    ),
    Mutant(
        id="replicated-when-sent",
        rule="R8",
        what="A leader counts records as replicated when it has sent them, not when the follower names the offset "
        "behind them: as if followers reported their end before the write.",
        module="tidelog.replication.session",
        old="        entry.armed = False\n        self.marks.pop(entry, None)\n        self._note_sent(entry)\n",
        new="        entry.armed = False\n"
        "        follower = leading.followers.get(self.node)\n"
        "        if follower is not None:\n"
        "            follower.log_end_offset = read.next_offset\n"
        "            if partition.advance(self._owner.clock.monotonic_ms()):\n"
        "                replica.settle()\n"
        "        self.marks.pop(entry, None)\n        self._note_sent(entry)\n",
        scenario="replication",
    ),
    Mutant(
        id="consumer-reads-uncommitted",
        rule="R9",
        what="Consumers are given what lies beyond the high watermark, and may see it vanish.",
        module=_PARTITION,
        old="        return self.last_stable_offset if read_committed else self.high_watermark\n",
        new="        return self.last_stable_offset if read_committed else self.log.log_end_offset\n",
        scenario="replication",
    ),
    Mutant(
        id="end-offset-goes-back",
        rule="R9",
        what="A new leader answers what the latest offset is before its high watermark has reached its epoch "
        "(KIP-207): "
        "less than its predecessor has answered.",
        module=_PARTITION,
        old="        if self.high_watermark < leading.epoch_start:\n",
        new="        if self.high_watermark < 0:\n",
        scenario="replication",
    ),
)

_IN_SYNC: Final = (
    Mutant(
        id="joins-below-high-watermark",
        rule="R10",
        what="A replica is taken into the ISR before it has reached the high watermark.",
        module=_LEADER,
        old="            or follower.log_end_offset < high_watermark\n",
        new="",
        scenario="replication",
    ),
    Mutant(
        id="joins-before-epoch-start",
        rule="R10",
        what="A replica is taken into the ISR that has reached a new leader's high watermark, which lags, but not the "
        "start of its epoch (KAFKA-7128): it may lack what the former leader committed.",
        module=_LEADER,
        old="            or follower.log_end_offset < self.epoch_start\n",
        new="",
        scenario="replication",
    ),
    Mutant(
        id="isr-change-without-partition-epoch",
        rule="R11",
        what="The controller makes an ISR change that was decided under an older partition epoch: one that was on its "
        "way "
        "for long takes in who has left since.",
        module="tidelog.metadata_quorum.isr_changes",
        old="    if item.partition_epoch < partition.partition_epoch:\n"
        "        return ErrorCode.INVALID_UPDATE_VERSION\n",
        new="",
        scenario="producers",
    ),
    Mutant(
        id="isr-change-sent-under-todays-epochs",
        rule="R11",
        what="A leader repeats an ISR change under the partition and broker epochs of the repetition, not those that "
        "it "
        "was decided under: a joiner that has come back with an empty disk since is taken in.",
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
        what="The controller takes a broker into an ISR under whatever broker epoch it is named (before KIP-903): a "
        "late request takes in a process that has come back since without its data.",
        module="tidelog.metadata_quorum.isr_changes",
        old="    return found.broker_epoch == member.broker_epoch\n",
        new="    return True\n",
        scenario="five-nodes",
    ),
)

_MEMBERS: Final = (
    Mutant(
        id="deposed-leader-goes-on",
        rule="R13",
        what="A leader that hears of a newer epoch with another leader goes on leading.",
        module=_PARTITION,
        old="        if state.leader_epoch > known.leader_epoch:\n",
        new="        if state.leader_epoch > known.leader_epoch and (self.leading is None or state.leader == "
        "self.node_id):\n",
        scenario="replication",
    ),
    Mutant(
        id="leader-epoch-not-raised",
        rule="R13",
        what="A new leader leads under the epoch of the last one (brokers then go by the change of leader): the tails "
        "of "
        "two leaders cannot be told apart.",
        module="tidelog.metadata_quorum.image_change",
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
        what="A broker that is fenced keeps its leaderships and its places in the ISRs.",
        module=_BROKERS,
        old="        return [*self._leave_isrs(image, nodes, held), *records]\n",
        new="        return records\n",
        scenario="replication",
    ),
    Mutant(
        id="old-broker-epoch-acts",
        rule="R15",
        what="The controller takes calls of a broker's former process for those of its present one (three checks that "
        "cover each other): a late heartbeat unfences who has not asked for it, or shuts it down.",
        module="tidelog.metadata_quorum.decision",
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
        what="A registration replaces the live process of the same node id.",
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
        what="Without a safe candidate any live replica is elected, as if unclean elections were allowed.",
        module=_CHANGE,
        old="    if election is Election.UNCLEAN:\n",
        new="    if election is not None:\n",
        scenario="unclean",
    ),
    Mutant(
        id="elr-kept-with-whole-isr",
        rule="R17",
        what="Who leaves an ISR that is large enough is eligible all the same, and stays so while the ISR commits "
        "without "
        "it (two places that cover each other).",
        module=_CHANGE,
        old="    if len(isr_next) >= min_isr:\n        return []\n",
        new="",
        scenario="unclean",
        more=(Edit(_CHANGE, "        elr_next = []\n        remembered = []\n", "        remembered = []\n"),),
    ),
    Mutant(
        id="unclean-broker-stays-eligible",
        rule="R17",
        what="A broker that comes back from an unclean stop keeps its place in ELRs, though it may have lost its tail.",
        module=_BROKERS,
        old="            clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch\n",
        new="            clean = existing is not None\n",
        scenario="unclean",
    ),
    Mutant(
        id="clean-shutdown-believed-twice",
        rule="R18",
        what="The file of a clean stop is left where it is and believed again after a kill, by the logs, which skip "
        "recovery, and by the controller, which does not compare its epoch (two checks that cover each other).",
        module="tidelog.storage.log_directory",
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
        what="A broker whose only disk was replaced keeps its place in ELRs, is elected with an empty log, and the "
        "others cut theirs.",
        module=_BROKERS,
        old="                unclean=not clean,\n                wiped=wiped,\n",
        new="                unclean=not clean and not wiped,\n                wiped=False,\n",
        scenario="unclean",
    ),
    Mutant(
        id="offline-directory-may-lead",
        rule="R19",
        what="The directory a replica stands on is not asked about: one whose disk has failed or is gone is elected.",
        module="tidelog.metadata_quorum.decision",
        old="        return image.has_online_directory(node_id, partition)\n",
        new="        return True\n",
        scenario="disk",
    ),
)

_RECOVERIES: Final = (
    Mutant(
        id="one-of-the-safe-remembered",
        rule="R28",
        what="Of those that were safe before their unclean stops only the first is remembered, and leads without a "
        "word: it may be the one that lost its tail (so does Kafka with the last leader).",
        module=_CHANGE,
        old="    ]\n\n    recovering = (",
        new="    ][:1]\n\n    recovering = (",
        scenario="unclean",
    ),
    Mutant(
        id="shortest-log-recovers",
        rule="R29",
        what="Of the logs that were reported the one leads that reaches least far.",
        module=_RECOVERY,
        old="        longest = max(asked,",
        new="        longest = min(asked,",
        scenario="unclean",
    ),
    Mutant(
        id="recovers-before-all-reported",
        rule="R29",
        what="The first of those that were safe to report leads, whatever the others have.",
        module=_RECOVERY,
        old="        if now_ms - search.since_ms < self._timeout_ms:\n",
        new="        if now_ms < search.since_ms:\n",
        scenario="unclean",
    ),
)

_IDEMPOTENCE: Final = (
    Mutant(
        id="sequence-check-removed",
        rule="R20",
        what="A leader does not look at sequences: what is sent again is written again.",
        module=_LOG,
        old="            found = self.producers.check(batches)\n",
        new="            found = None\n",
        scenario="producers",
    ),
    Mutant(
        id="sequence-gap-accepted",
        rule="R20",
        what="A gap in the sequences is taken: a batch overtakes one before it that was refused.",
        module=_PRODUCERS,
        old="    if sequence != expected:\n",
        new="    if sequence < 0:\n",
        scenario="producers",
    ),
    Mutant(
        id="sequence-does-not-wrap",
        rule="R20",
        what="What comes after sequence 2^31 - 1 is not found among what is known of its producer: sent again after a "
        "lost answer, it looks like a gap and not like a duplicate.",
        module=_PRODUCERS,
        old="            into = (sequence - run.sequence) % _SEQUENCES\n",
        new="            into = sequence - run.sequence\n"
        "            if into < 0 and run is not self.runs[0]:\n"
        "                continue\n",
        scenario="producers",
    ),
    Mutant(
        id="producer-snapshot-not-restored",
        rule="R21",
        what="A start takes the offset of a producer snapshot but not what it says: who wrote before it is unknown, "
        "and a "
        "retry is written again.",
        module="tidelog.storage.producer_loading",
        old="        states = ProducerStates(producers, producers_max=producers_max)\n",
        new="        states = ProducerStates(producers_max=producers_max)\n",
        scenario="producers",
    ),
    Mutant(
        id="producers-survive-truncation",
        rule="R21",
        what="What producers wrote is remembered after it was cut off: its retry is acknowledged as a duplicate of "
        "records that are gone.",
        module=_LOG,
        old="            self.producers = load_producers(\n",
        new="            load_producers(\n",
        scenario="producers",
    ),
    Mutant(
        id="followers-forget-producers",
        rule="R21",
        what="Followers do not note producers in what they fetch: after a failover a retry is written again.",
        module=_LOG,
        old="            if batch.producer_id >= 0:\n",
        new="            if batch.producer_id >= 0 and leader_epoch is not None:\n",
        scenario="producers",
    ),
    Mutant(
        id="producer-epoch-not-fenced",
        rule="R22",
        what="A batch under an older producer epoch is taken if its sequence happens to fit.",
        module=_PRODUCERS,
        old="    if batch.producer_epoch < epoch:\n"
        "        return _old_epoch(producer_id, batch.producer_epoch, epoch)\n",
        new="",
        scenario="producers",
    ),
)

_STORAGE: Final = (
    Mutant(
        id="recovery-without-crc",
        rule="R23",
        what="Recovery takes a tail of the right shape without comparing its CRCs: a torn write stays in the log.",
        module="tidelog.storage.batch_walk",
        old="        if not batch.crc_ok():\n"
        '            raise CorruptBatch(f"expected a batch at {position} that matches its CRC {batch.crc:#010x}, it '
        'does not")\n',
        new="",
        scenario="unclean",
    ),
    Mutant(
        id="fsync-skipped",
        rule="R24",
        what="A flush ends without an fdatasync of the log: what flush.messages=1 acknowledged is in the page cache "
        "only.",
        module="tidelog.storage.flush",
        old="                for file in self._files:\n                    file.fdatasync()\n",
        new="",
        scenario="power-loss",
    ),
    Mutant(
        id="leader-counts-unsynced",
        rule="R24",
        what="With flush.messages=1 a leader counts its own end before it is on its disk.",
        module=_PARTITION,
        old="        return self.log.acknowledgeable_offset\n",
        new="        return self.log.log_end_offset\n",
        scenario="power-loss",
    ),
    Mutant(
        id="follower-names-unsynced",
        rule="R24",
        what="With flush.messages=1 a follower names its next offset before what is below it is on its disk.",
        module=_FETCHER,
        old="            if partition.needs_flush:\n",
        new="            if partition.offline:\n",
        scenario="power-loss",
    ),
    Mutant(
        id="follower-takes-corrupt-batches",
        rule="R25",
        what="A follower does not compare the CRC of what it fetches: a bit that flipped on the leader's disk is "
        "replicated.",
        module=_CHECKS,
        old="            if not batch.crc_ok() or batch.last_offset_delta < 0:\n",
        new="            if batch.last_offset_delta < 0:\n",
        scenario="unclean",
    ),
    Mutant(
        id="follower-appends-anywhere",
        rule="R25",
        what="A follower takes answers to older fetches, of older epochs too, and appends them whether or not their "
        "offsets go on from its end (four checks that cover each other).",
        module=_CHECKS,
        old="            if batch.last_offset < due and not found:\n                continue\n",
        new="",
        scenario="five-nodes",
        more=(
            Edit(
                _CHECKS,
                "            elif batch.base_offset != due and (batch.base_offset > due or found or not is_empty):\n"
                "                return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, "
                'f"expected offset {due}, found {batch.base_offset}")\n',
                "",
            ),
            Edit(
                _FETCHER,
                "            if entry is not None and correlation >= entry.named_at:\n",
                "            if entry is not None:\n",
            ),
            _EPOCH_OF_ANSWER_NOT_COMPARED,
        ),
    ),
)

_KNOWLEDGE: Final = (
    Mutant(
        id="metadata-goes-back",
        rule="R26",
        what="A broker that asks a controller which is behind loads that one's older image (two checks that cover each "
        "other): topics that are newer seem deleted, their logs are removed.",
        module="tidelog.broker.metadata_view",
        old="        if offset < self._newest.offset:\n",
        new="        if offset < 0:\n",
        scenario="five-nodes",
        more=(
            Edit(
                "tidelog.metadata_quorum.publisher",
                "            if request.fetch_offset > self._source.commit_offset + 1:\n"
                "                return self._answer(ErrorCode.OFFSET_NOT_AVAILABLE)\n",
                "",
            ),
        ),
    ),
    Mutant(
        id="client-takes-older-leader",
        rule="R26",
        what="A client replaces a partition's leader by one of an older epoch, from a broker that is behind.",
        module="tidelog.client.metadata",
        old="            if before is not None and found.leader_epoch < before.leader_epoch:\n"
        "                partitions.append(before)\n"
        "                continue\n",
        new="",
        scenario="five-nodes",
        more=(
            Edit(
                "tidelog.client.metadata",
                "epoch <= view.leader_epoch or epoch == NO_LEADER_EPOCH",
                "epoch == view.leader_epoch or epoch == NO_LEADER_EPOCH",
            ),
        ),
    ),
    Mutant(
        id="client-resends-under-new-sequence",
        rule="R27",
        what="A producer sends a batch whose outcome is unknown again under the next free sequence: what was written "
        "is "
        "written twice.",
        module=_QUEUE,
        old="        self.retry_at_ms = max(self.retry_at_ms, retry_at_ms)\n",
        new="        self.retry_at_ms = max(self.retry_at_ms, retry_at_ms)\n        batch.sequence = -1\n",
        scenario="producers",
    ),
    Mutant(
        id="client-retries-in-reverse",
        rule="R27",
        what="Several batches that are to be sent again go out in reverse, numbered in that order (a broker would "
        "notice if they kept their sequences).",
        module=_QUEUE,
        old="        self.pending.extendleft(reversed([b for b in self.window if id(b) in back]))\n",
        new="        batch.sequence = -1\n        self.pending.extendleft([b for b in self.window if id(b) in back])\n",
        scenario="producers",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_TRUNCATION,
    *_HIGH_WATERMARK,
    *_ACKNOWLEDGEMENT,
    *_IN_SYNC,
    *_MEMBERS,
    *_ELECTION,
    *_RECOVERIES,
    *_IDEMPOTENCE,
    *_STORAGE,
    *_KNOWLEDGE,
)
