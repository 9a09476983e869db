"""Patches of the consumer protocol (KIP-848), of its coordinator and of its members."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_RECONCILING: Final = "tidelog.groups.consumer.reconciling"
_HEARTBEATING: Final = "tidelog.groups.consumer.heartbeating"
_ASKING: Final = "tidelog.groups.consumer.asking"
_CLAIMS: Final = "tidelog.groups.state.consumer_claims"
_ASSIGNED: Final = "tidelog.client.group.server_assigned"
_MEMBERSHIP: Final = "tidelog.client.group.consumer_membership"

mutant: Final = partial(Mutant, scenario="consumer-groups")

_COORDINATOR: Final = (
    mutant(
        id="free-though-another-has-it",
        rule="one owner",
        what="The coordinator gives a partition to its next owner while the one before still has it.",
        module=_RECONCILING,
        old="            if owners.get((topic_id, partition), member_id) == member_id:\n",
        new="            if member_id:\n",
    ),
    mutant(
        id="epoch-rises-before-all-is-given-up",
        rule="fenced",
        what="A member that has yet to give partitions up is told the next epoch: what it sends for them in that epoch "
        "is good when they are another's (KAFKA-19974).",
        module=_RECONCILING,
        old="        return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked)\n",
        new="        return replace(\n"
        "            now, epoch=target_epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked\n"
        "        )\n",
    ),
    mutant(
        id="heartbeat-answered-before-stored",
        rule="one owner",
        what="Members are told what they have before it is in the log, and others what follows from it: the next "
        "coordinator knows nothing of either.",
        module=_HEARTBEATING,
        old="        consumer.busy += len(batches)\n        if not batches:\n",
        new="        pending.tell(ErrorCode.NONE)\n        if not batches:\n",
        more=(Edit(_HEARTBEATING, "        consumer.busy -= self._appends\n", ""),),
    ),
    mutant(
        id="any-earlier-epoch-is-good",
        rule="fenced",
        what="A heartbeat of any earlier epoch is taken, as if only its answer had been lost.",
        module=_ASKING,
        old="        said == current.previous_epoch\n        and said < known\n",
        new="        said < known\n",
    ),
    mutant(
        id="pending-is-forgotten",
        rule="one owner",
        what="What a member has yet to give up counts as free (KAFKA-16147).",
        module="tidelog.groups.state.consumer_group",
        old="    for owned in (current.assigned, current.pending):\n",
        new="    for owned in (current.assigned,):\n",
    ),
    mutant(
        id="any-epoch-may-commit",
        rule="fenced",
        what="A member commits for partitions that it gave up, in the epoch of that time (KIP-1251).",
        module=_CLAIMS,
        old="        if since is None or epoch < since:\n            return stale\n",
        new="",
    ),
    mutant(
        id="silent-members-stay",
        rule="progress",
        what="A member that is not heard of stays in its group for ever, with its partitions.",
        module=_HEARTBEATING,
        old="        self._shard.counters.expired_sessions += 1\n        self._fence(change, member_id, topics)\n",
        new="        self._shard.counters.expired_sessions += 1\n",
    ),
)

_MEMBER: Final = (
    mutant(
        id="says-so-before-it-gives-up",
        rule="owned only",
        what="The consumer tells the coordinator that it has given partitions up, and only then does.",
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
        what="A member that the coordinator does not know any more stays as it is, and does not join again.",
        module=_MEMBERSHIP,
        old="        if code in _FENCING:\n            return self._fence()\n",
        new="        if code in _FENCING:\n            return Next.LATER\n",
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*_COORDINATOR, *_MEMBER)
