"""Patches of the consumer protocol (KIP-848), of its coordinator and of its members."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_RECONCILING: Final = "tidelog.groups.consumer.reconciling"
_DECIDED: Final = "tidelog.groups.consumer.decided"
_HEARTBEATING: Final = "tidelog.groups.consumer.heartbeating"
_ASKING: Final = "tidelog.groups.consumer.asking"
_CLAIMS: Final = "tidelog.groups.state.consumer_claims"
_ASSIGNED: Final = "tidelog.client.group.server_assigned"
_MEMBERSHIP: Final = "tidelog.client.group.consumer_membership"

_CONVERTING: Final = "tidelog.groups.consumer.converting"
_CLASSIC_MEMBERS: Final = "tidelog.groups.consumer.classic_members"

mutant: Final = partial(Mutant, scenario="consumer-groups")
mixed: Final = partial(Mutant, scenario="mixed-groups")

_COORDINATOR: Final = (
    mutant(
        id="free-though-another-has-it",
        rule="one owner",
        what="The coordinator gives a partition to its next owner while the previous one still has it.",
        module=_RECONCILING,
        old="            if owners.get((topic_id, partition), member_id) == member_id:\n",
        new="            if member_id:\n",
    ),
    mutant(
        id="epoch-rises-before-all-is-given-up",
        rule="fenced",
        what="The coordinator tells a member the next epoch before the member has given up all its partitions: what "
        "it sends for them in that epoch counts even when they belong to another (KAFKA-19974).",
        module=_RECONCILING,
        old="        return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked)\n",
        new="        return replace(\n"
        "            now, epoch=target_epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked\n"
        "        )\n",
    ),
    mutant(
        id="heartbeat-answered-before-stored",
        rule="one owner",
        what="The coordinator tells members what they own before it is in the log, and tells others what follows from "
        "it: the next coordinator knows nothing of either.",
        module=_DECIDED,
        old="            consumer.busy += 1\n            group.record_number",
        new="            group.record_number",
        more=(
            Edit(
                _DECIDED, "        self._change.group.busy -= 1\n        self._left -= 1\n", "        self._left -= 1\n"
            ),
        ),
    ),
    mutant(
        id="any-earlier-epoch-is-good",
        rule="fenced",
        what="The coordinator accepts a heartbeat of any earlier epoch, as if only its answer had been lost.",
        module=_ASKING,
        old="        said == current.previous_epoch\n        and said < known\n",
        new="        said < known\n",
    ),
    mutant(
        id="pending-is-forgotten",
        rule="one owner",
        what="Partitions that a member has yet to give up count as free (KAFKA-16147).",
        module="tidelog.groups.state.consumer_group",
        old="    for owned in (current.assigned, current.pending):\n",
        new="    for owned in (current.assigned,):\n",
    ),
    mutant(
        id="any-epoch-may-commit",
        rule="fenced",
        what="A member can commit for partitions that it gave up, in the epoch in which it had them (KIP-1251).",
        module=_CLAIMS,
        old="        if since is None or epoch < since:\n            return stale\n",
        new="",
    ),
    mutant(
        id="silent-members-stay",
        rule="progress",
        what="A silent member stays in its group forever, with its partitions.",
        module=_HEARTBEATING,
        old="        self._shard.counters.expired_sessions += 1\n"
        "        self._deciding.fence(change, member_id, topics, now)\n",
        new="        self._shard.counters.expired_sessions += 1\n",
    ),
)

_MEMBER: Final = (
    mutant(
        id="says-so-before-it-gives-up",
        rule="owned only",
        what="The consumer tells the coordinator that it has given up partitions before it does so.",
        module=_ASSIGNED,
        old="        if revoked:\n            yield from self._settle(revoked)\n",
        new="        if revoked:\n            gone = set(revoked)\n"
        "            self._owned = {at: each for at, each in self._owned.items() if at not in gone}\n"
        "            self._acknowledge(target, life)\n"
        "            yield from self._settle(revoked)\n"
        "            yield Wait(self._clock.monotonic_ms() + 100)\n",
    ),
    mutant(
        id="deaf-to-its-fencing",
        rule="progress",
        what="A member that the coordinator no longer knows carries on and does not rejoin.",
        module=_MEMBERSHIP,
        old="        if code in _FENCING:\n            return self._fence()\n",
        new="        if code in _FENCING:\n            return Next.LATER\n",
    ),
)

_MIXED: Final = (
    mixed(
        id="an-upgrade-forgets-its-members-partitions",
        rule="one owner",
        what="A classic group that gets the consumer protocol begins with all partitions free, while its members read "
        "them.",
        module=_CONVERTING,
        old="        assigned, pending = _owned(assignment.partitions, topics, epoch), _owned(kept, topics, epoch)\n",
        new="        assigned, pending = _owned((), topics, epoch), _owned((), topics, epoch)\n",
    ),
    mixed(
        id="a-classic-member-is-not-asked-what-it-has",
        rule="one owner",
        what="The coordinator takes it that a classic member that rejoins has given up everything that it must.",
        module=_CLASSIC_MEMBERS,
        old="by_id(subscription.owned, topics), topics)",
        new="{}, topics)",
    ),
    mixed(
        id="classic-members-are-never-called-back",
        rule="progress",
        what="Heartbeats do not tell classic members of a consumer group to rejoin: they keep what they have forever.",
        module=_CLASSIC_MEMBERS,
        old="        if not self._has_more_to_do(consumer, member_id):\n",
        new="        if consumer.members:\n",
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*_COORDINATOR, *_MEMBER, *_MIXED)
