"""Patches of the group coordinator, of the log under it, of assignors and of consumers in groups.

Each takes away one rule that :mod:`tidelog.chaos.checkers.groups` judges by, or progress. What a coordinator
acknowledges too early shows only when it dies in that instant; plots see to that.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_COMMITTING: Final = "tidelog.groups.offsets.committing"
_LOADING: Final = "tidelog.replication.coordinators.coordinator_loading"
_REBALANCING: Final = "tidelog.groups.classic.rebalancing"
_SYNCING: Final = "tidelog.groups.classic.syncing"
_JOINING: Final = "tidelog.groups.classic.joining"
_GROUP: Final = "tidelog.groups.state.group"
_CONSUMER_GROUP: Final = "tidelog.client.group.consumer_group"
_POLLED_GROUP: Final = "tidelog.client.group.polled_group"
_MEMBERSHIP: Final = "tidelog.client.group.membership"

mutant: Final = partial(Mutant, scenario="groups")

_WHO: Final = (
    mutant(
        id="no-generation-check-on-commit",
        rule="fenced",
        what="The coordinator accepts a member's commit whatever generation it names: a zombie that wakes after "
        "others were given its partitions overwrites their progress.",
        module=_COMMITTING,
        old='        if generation != group.generation:\n            return ErrorCode.ILLEGAL_GENERATION, f"expected',
        new='        if generation < -1:\n            return ErrorCode.ILLEGAL_GENERATION, f"expected',
    ),
    mutant(
        id="no-member-check-on-commit",
        rule="fenced",
        what="The coordinator accepts commits of the current generation from anybody, member or not.",
        module=_COMMITTING,
        old="        refusal = group.refusal(member_id, instance_id)\n"
        "        if refusal is not ErrorCode.NONE:\n"
        '            return refusal, ""\n',
        new="",
    ),
    mutant(
        id="no-static-fencing",
        rule="fenced",
        what="A static member that was replaced keeps its identity: two processes with one instance id are served "
        "(KIP-345).",
        module=_GROUP,
        old="            if known != member_id:\n                return ErrorCode.FENCED_INSTANCE_ID\n"
        "        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID\n",
        new="            return ErrorCode.NONE\n"
        "        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID\n",
    ),
    mutant(
        id="member-not-removed-at-session-end",
        rule="progress",
        what="A silent member stays in its group forever, with its partitions.",
        module=_REBALANCING,
        old="        self._shard.counters.expired_sessions += 1\n        self.drop(group, member)\n"
        "        self.member_gone(group, now)\n",
        new="        self._shard.counters.expired_sessions += 1\n",
    ),
)

_STORED: Final = (
    mutant(
        id="commit-applied-before-replicated",
        rule="no regress",
        what="A commit takes effect and is acknowledged as soon as the coordinator has written it: its followers may "
        "not have it when it dies.",
        module=_COMMITTING,
        old="        self._shard.append(records, _OffsetsAppend(self._shard, group, changes, waiter, answered), now)\n",
        new="        from tidelog.groups.state.shard_state import GroupRecordAppend\n\n"
        "        pending = _OffsetsAppend(self._shard, group, changes, waiter, answered)\n"
        "        pending.ended(self._shard.append(records, GroupRecordAppend(), now), ErrorCode.NONE, now)\n",
    ),
    mutant(
        id="commit-read-before-replicated",
        rule="no regress",
        what="Others can read a commit as soon as the coordinator has written it, although it is acknowledged later.",
        module=_COMMITTING,
        old="        self._shard.append(records, _OffsetsAppend(self._shard, group, changes, waiter, answered), now)\n",
        new="        for topic, partition, value in changes:\n"
        "            group.offsets._put(topic, partition, value)\n"
        "        self._shard.append(records, _OffsetsAppend(self._shard, group, changes, waiter, answered), now)\n",
        more=(
            Edit(
                _COMMITTING,
                "            if require_stable and offsets.is_pending(topic, partition):",
                "            if False:",
            ),
        ),
    ),
    mutant(
        id="assignment-answered-before-stored",
        rule="one owner",
        what="Members learn the leader's assignment before it is in the log: the next coordinator does not know that "
        "generation and reuses its number.",
        module=_SYNCING,
        old="        group.record_number = group.storing = number\n",
        new="        group.record_number = group.storing = number\n"
        "        pending.ended(number, ErrorCode.NONE, now)\n",
    ),
    mutant(
        id="loading-stops-at-the-first-slice",
        rule="no regress",
        what="A coordinator loads only the first part of its log, and serves offsets that were committed long ago.",
        module=_LOADING,
        old="        offset = found.next_offset\n    error",
        new="        offset = bounds.end\n    error",
        more=(
            Edit(
                _LOADING,
                "await log.read(partition, leader_epoch, offset, bytes_max)",
                "await log.read(partition, leader_epoch, offset, 2_000)",
            ),
        ),
    ),
    mutant(
        id="loading-passes-groups-over",
        rule="one owner",
        what="A coordinator loads the offsets but not the groups: generations start over.",
        module="tidelog.groups.replaying",
        old="                (self._group(group_id) if group is None else group).load(metadata)\n",
        new="                return\n",
    ),
    mutant(
        id="served-before-committed",
        rule="no regress",
        what="A coordinator serves what it has loaded before its log is committed up to there: the next one may not "
        "have it.",
        module=_LOADING,
        old="    error = await log.committed(partition, leader_epoch, bounds.end)\n"
        "    return None if error is ErrorCode.NONE else error.name\n",
        new="    return None\n",
    ),
    mutant(
        id="replacement-not-stored",
        rule="fenced",
        what="A static member's new id is not written: the next coordinator knows the old id, and fences the live "
        "member in favour of the one that was replaced.",
        module=_JOINING,
        old="group.record_number = shard.append(shard.group_records(group, assignments), pending, now)",
        new="pending.ended(len(assignments), ErrorCode.NONE, now)",
    ),
)

_CLIENT: Final = (
    mutant(
        id="commits-what-was-fetched",
        rule="delivered",
        what="The consumer commits up to where it has fetched, not up to what it has handed out.",
        module="tidelog.client.consumer.core",
        old="                at: (s.position, s.position_epoch) if",
        new="                at: (s.fetch_offset, s.fetch_epoch) if",
    ),
    mutant(
        id="commits-what-is-being-handed-out",
        rule="delivered",
        what="poll() collects its records before it commits: it commits the records that it is about to return, which "
        "are lost if the user's process dies while handling them.",
        module="tidelog.client.group.poll_commits",
        old="            self._automatic = self.send(offsets, None)\n",
        new="            offsets = {at: each._replace(offset=each.offset + 1) for at, each in offsets.items()}\n"
        "            self._automatic = self.send(offsets, None)\n",
    ),
    mutant(
        id="reads-on-what-was-revoked",
        rule="owned only",
        what="The consumer hands out records of partitions that it has given up.",
        module=_POLLED_GROUP,
        old="        finally:\n            self._assign(kept)\n        if error",
        new="        finally:\n            self._assign([*kept, *gone])\n        if error",
    ),
    mutant(
        id="begins-anew-instead-of-at-the-committed",
        rule="forward only",
        what="The consumer does not ask for the committed offset: it starts where a new group would.",
        module="tidelog.client.fetching.positions",
        old="    def ask_committed(self) -> None:\n"
        '        """Forget the position; take the committed offset."""\n'
        "        self.seek(UNKNOWN)\n"
        "        self.wants_committed = True\n",
        new="    def ask_committed(self) -> None:\n        self.seek(0)\n",
    ),
    mutant(
        id="deaf-to-its-eviction",
        rule="progress",
        what="A member that learns that the group has moved on without it carries on and does not rejoin.",
        module=_MEMBERSHIP,
        old="        if code in _FORGOTTEN or code is ErrorCode.FENCED_INSTANCE_ID:\n",
        new="        if code in _FORGOTTEN:\n"
        "            self._session_over_ms = now + self._session_timeout_ms\n"
        "            return Next.GO_ON\n"
        "        if code is ErrorCode.FENCED_INSTANCE_ID:\n",
        more=(
            Edit(
                _MEMBERSHIP,
                'self._reset(f"{code.name} to a commit", forget_member=code is ErrorCode.UNKNOWN_MEMBER_ID)',
                "pass",
            ),
        ),
    ),
    mutant(
        id="no-commit-on-close",
        rule="committed",
        what="A consumer does not commit what it has handed out when it closes.",
        module=_POLLED_GROUP,
        old="            if self.config.auto_commits and offsets:\n",
        new="            if offsets is None:\n",
    ),
    mutant(
        id="two-owners-in-a-hand-over",
        rule="fenced",
        what="The cooperative assignor gives a partition to its new owner while the old one still has it (KIP-429).",
        module="tidelog.model.assignors.cooperative_sticky",
        old="[partition for partition in part if partition not in held]",
        new="list(part)",
    ),
    mutant(
        id="blind-to-new-partitions",
        rule="delivered",
        what="The group's leader does not notice that topics have grown, or that new ones match.",
        module=_CONSUMER_GROUP,
        old="        return led != {name: len(",
        new="        return {} == {name: len(",
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*_WHO, *_STORED, *_CLIENT)
