"""Patches of replication between leader and followers: truncation, the high watermark, acknowledgements.

Each takes one rule of ``docs/replication.md`` away (R1 and following), most of them bugs that Kafka had
once. Rules that cover each other go together, and ``what`` says so.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_PARTITION: Final = "tidelog.replication.partition.partition"
_LEADER: Final = "tidelog.replication.partition.leader"
_ISR: Final = "tidelog.replication.partition.isr"

_NO_EPOCH_COMPARED: Final = Edit(
    _LEADER,
    "        if last_fetched_epoch >= 0 and start <= fetch_offset:\n",
    "        if False:\n",
)
EPOCH_OF_ANSWER_NOT_COMPARED: Final = Edit(
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

mutant: Final = partial(Mutant, scenario="replication")
"""Where most of them are seen; the others say where."""

_TRUNCATION: Final = (
    mutant(
        id="truncates-to-high-watermark",
        rule="R1",
        what="A new follower truncates its log to its own high watermark, which lags, and no epochs are compared "
        "(KIP-101): an in-sync replica throws away committed records, and may be elected before it has them again.",
        module=_PARTITION,
        old="        if state.leader != self.node_id:\n            self.following =",
        new="        if state.leader != self.node_id:\n            self._truncate(self.high_watermark)\n"
        "            self.following =",
        more=(_NO_EPOCH_COMPARED,),
    ),
    mutant(
        id="leader-epochs-not-compared",
        rule="R1",
        what="Nobody compares leader epochs when fetching, neither those of requests, answers and records nor those "
        "of the logs themselves (four checks that cover each other): a deposed leader keeps its own tail under the "
        "new log.",
        module=_PARTITION,
        old="        if leader_epoch >= 0:\n            if leader_epoch < known:\n",
        new="        if leader_epoch < -1:\n            if leader_epoch < known:\n",
        more=(
            EPOCH_OF_ANSWER_NOT_COMPARED,
            Edit(_PARTITION, "leader_epoch_max=following.epoch)", "leader_epoch_max=None)"),
            _NO_EPOCH_COMPARED,
        ),
    ),
    mutant(
        id="single-epoch-lookup",
        rule="R2",
        what="A follower that does not know the epoch that the leader names truncates to that epoch's end all the "
        "same, and the leader asks for no second round (KIP-279): two logs differ below the cut forever.",
        module="tidelog.replication.partition.follower",
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
    mutant(
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
    ),
    mutant(
        id="high-watermark-passes-who-joins",
        rule="R3",
        what="The high watermark does not wait for a replica that the leader has asked to take in, nor for one that "
        "keeps up and may join (two rules that cover each other): it is in the ISR without what was committed.",
        module=_LEADER,
        old="        maximal = isr.maximal\n",
        new="        maximal = frozenset(isr.committed)\n",
        more=(
            Edit(
                _LEADER, "(follower.node in maximal or self._is_joining(follower, now_ms))", "follower.node in maximal"
            ),
        ),
    ),
    mutant(
        id="isr-shrink-counted-when-asked",
        rule="R4",
        what="A leader stops waiting for a member as soon as it has asked to drop it: the request may never reach the "
        "controller, which then elects that member.",
        module=_ISR,
        old="        self.maximal = frozenset(self.committed) | frozenset(self.proposal.isr)\n",
        new="        self.maximal = frozenset(self.proposal.isr)\n",
    ),
    mutant(
        id="high-watermark-below-min-isr",
        rule="R5",
        what="The last remaining replica keeps raising the high watermark alone (before KIP-966): consumers read what "
        "a clean election of an eligible replica then loses.",
        module=_HIGH_WATERMARK_BELOW_MIN_ISR.module,
        old=_HIGH_WATERMARK_BELOW_MIN_ISR.old,
        new=_HIGH_WATERMARK_BELOW_MIN_ISR.new,
        scenario="unclean",
    ),
    mutant(
        id="new-leader-commits-its-tail",
        rule="R6",
        what="A new leader takes its log's end for the high watermark: consumers see what no other replica has.",
        module=_PARTITION,
        old="        self.leading = LeaderState(\n            self.node_id,\n",
        new="        self.high_watermark = self.log.log_end_offset\n"
        "        self.leading = LeaderState(\n            self.node_id,\n",
    ),
    mutant(
        id="follower-positions-outlive-the-epoch",
        rule="R6",
        what="A leader that is elected again uses its followers' positions from its last term, although they have "
        "truncated their logs since.",
        module=_PARTITION,
        old='        "_lag_time_max_ms",\n',
        new='        "_lag_time_max_ms",\n        "_led_before",\n',
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
    mutant(
        id="high-watermark-beyond-the-log",
        rule="R6",
        what="A stored high watermark is believed although a power loss took the log behind it (two checks that cover "
        "each other): a leader answers acks=all immediately, for records that nobody else has.",
        module=_PARTITION,
        old="Offset(max(log.log_start_offset, min(high_watermark, log.log_end_offset)))",
        new="Offset(max(log.log_start_offset, high_watermark))",
        scenario="unclean",
        more=(
            Edit(
                "tidelog.storage.log.log_manager",
                "            key: Offset(min(offset, log.log_end_offset))\n",
                "            key: offset\n",
            ),
        ),
    ),
)

_ACKNOWLEDGEMENT: Final = (
    mutant(
        id="acks-all-at-append",
        rule="R7",
        what="acks=all is answered when the leader has appended, before the high watermark has passed the batch.",
        module="tidelog.replication.serving.producing",
        old="                if replica.partition.high_watermark < required:\n",
        new="                if required < 0:\n",
    ),
    mutant(
        id="min-isr-not-checked",
        rule="R7",
        what="min.insync.replicas is checked neither at the append, nor for the high watermark, nor for the answer "
        "(three checks that cover each other): the last replica acknowledges acks=all alone.",
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
    mutant(
        id="replicated-when-sent",
        rule="R8",
        what="A leader counts records as replicated when it has sent them, not when the follower fetches from the "
        "offset behind them: as if followers reported their end before the write.",
        module="tidelog.replication.serving.session",
        old="        entry.armed = False\n        self.marks.pop(entry, None)\n        self._note_sent(entry)\n",
        new="        entry.armed = False\n"
        "        follower = leading.followers.get(self.node)\n"
        "        if follower is not None:\n"
        "            follower.log_end_offset = read.next_offset\n"
        "            if partition.advance(self._owner.clock.monotonic_ms()):\n"
        "                replica.settle()\n"
        "        self.marks.pop(entry, None)\n        self._note_sent(entry)\n",
    ),
    mutant(
        id="consumer-reads-uncommitted",
        rule="R9",
        what="Consumers get records beyond the high watermark, which may vanish.",
        module=_PARTITION,
        old="        return self.last_stable_offset if read_committed else self.high_watermark\n",
        new="        return self.last_stable_offset if read_committed else self.log.log_end_offset\n",
    ),
    mutant(
        id="follower-shows-its-end",
        rule="R9",
        what="A follower gives consumers in its rack records beyond its high watermark (KIP-392), which it may yet "
        "truncate.",
        module="tidelog.replication.serving.consumer_fetch",
        old="        end = partition.fetchable_end(self._request.read_committed)\n",
        new="        end = partition.log.log_end_offset if isinstance(serving, FollowerState) else "
        "partition.fetchable_end(False)\n",
        scenario="racks",
        more=(
            Edit(
                "tidelog.replication.partition.answers",
                "        ErrorCode.NONE,\n        high_watermark=partition.high_watermark,\n        last_stable",
                "        ErrorCode.NONE,\n        high_watermark=partition.log.log_end_offset\n"
                "        if partition.following else partition.high_watermark,\n        last_stable",
            ),
        ),
    ),
    mutant(
        id="end-offset-goes-back",
        rule="R9",
        what="A new leader reports the latest offset before its high watermark has reached its epoch (KIP-207): a "
        "lower one than its predecessor reported.",
        module=_PARTITION,
        old="        if self.high_watermark < leading.epoch_start:\n",
        new="        if self.high_watermark < 0:\n",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_TRUNCATION, *_HIGH_WATERMARK, *_ACKNOWLEDGEMENT)
