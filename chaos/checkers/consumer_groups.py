"""The judge of a group with assignment by its coordinator (KIP-848). Its rules are those of
:mod:`tidelog.chaos.checkers.groups`, except for these:

===================  ========================================================================================
one owner            no answer gives a member a partition while another may have it: one that was told
                     so, has not reported that it gave the partition up, and was neither silent for its
                     session timeout nor slow to give it up for its rebalance timeout
owned only           besides: a member that reports its partitions has no others
fenced               a commit is acknowledged only to the member that was last told that it owns the partition
forward only         the commits that a member sends do not go back behind what was committed when it was told
                     that it owns the partition
===================  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.chaos.checkers.groups import CommitKey, GroupJudge, _Floor
from tidelog.model.ids import TopicPartition

SURELY: Final = 0.9
"""The share of a timeout that passes for sure, even if the coordinator's clock is as fast as allowed."""


class ConsumerGroupJudge(GroupJudge):
    def __init__(self, session_s: float, rebalance_s: float) -> None:
        super().__init__()
        self.former: list[tuple[str, int, TopicPartition]] = []
        """Members that gave up a partition which another one has had since, and their epoch at that time."""
        self._session_s = session_s
        self._rebalance_s = rebalance_s
        self._may_have: dict[str, set[TopicPartition]] = {}
        """Member id → the partitions that it may have, as far as an outsider can know."""
        self._going_s: dict[tuple[str, TopicPartition], float] = {}
        """Since when a member knows that it must give a partition up."""
        self._heard_s: dict[str, float] = {}
        self._given: dict[TopicPartition, list[tuple[float, str]]] = {}
        """Partition → the members that were told that it is theirs, and when."""
        self._epoch_of: dict[tuple[str, TopicPartition], int] = {}
        """Member id and partition → the member's epoch while it had it."""
        self._claims: dict[str, frozenset[TopicPartition]] = {}
        """Classic member → what it said that it has when it was let in again, though it was another's."""

    # --- what members say -------------------------------------------------------------------------------

    def has_nothing(self, member_id: str) -> None:
        """A member joins, or leaves."""
        for partition in self._may_have.get(member_id, ()):
            self._going_s.pop((member_id, partition), None)
        self._may_have[member_id] = set()

    def says(self, client: str, member_id: str, epoch: int, owned: Iterable[TopicPartition]) -> list[str]:
        """Judge a member's report of its partitions: it has nothing else."""
        has = set(owned)
        mine = self._may_have.setdefault(member_id, set())
        for partition in mine - has:
            self._going_s.pop((member_id, partition), None)
            self._epoch_of[member_id, partition] = epoch
        mine &= has
        held = self._held.get(client)
        return [
            f"owned only: {client} says in epoch {epoch} that it has not got {partition}, and has it"
            for partition in sorted(() if held is None else held.partitions.keys() - has)
        ]

    def called_back(self, member_id: str) -> None:
        """A classic member is to rejoin; its rebalance timeout may run since it was heard before."""
        since_s = self._heard_s.get(member_id, 0.0)
        for partition in self._may_have.get(member_id, ()):
            self._going_s.setdefault((member_id, partition), since_s)

    # --- what coordinators answer -----------------------------------------------------------------------

    def let_in(self, member_id: str, owned: Iterable[TopicPartition]) -> None:
        """A classic member was let into a group without a leader. If it had been removed in the meantime, it does not
        learn that: as in Kafka (seen with 4.3.1), its old id is taken, and so are its commits in its new epoch, of
        partitions that are another's by now. It gives them up after its next SyncGroup."""
        self._claims[member_id] = frozenset(owned) - self._may_have.get(member_id, set())

    def heard(self, member_id: str, epoch: int, at_s: float) -> None:
        """Note that the coordinator has accepted a heartbeat."""
        self._heard_s[member_id] = max(at_s, self._heard_s.get(member_id, 0.0))
        self.newest_generation = max(self.newest_generation, epoch)

    def told(self, member_id: str, epoch: int, partitions: Iterable[TopicPartition], at_s: float) -> list[str]:
        """Judge the partitions that a member may have from now on, as it was told."""
        given = frozenset(partitions)
        mine = self._may_have.setdefault(member_id, set())
        found = []
        for partition in sorted(given - mine):
            for other, theirs in self._may_have.items():
                if other == member_id or partition not in theirs:
                    continue
                if not self._may_be_gone(other, at_s):
                    silent_s = at_s - self._heard_s.get(other, 0.0)
                    found.append(
                        f"one owner: {partition} is {member_id}'s in epoch {epoch}; {other} may have it, and was heard "
                        f"{silent_s:.3f} s before"
                    )
                theirs.discard(partition)
            before = self._given.setdefault(partition, [])
            if before and before[-1][1] != member_id:
                former = before[-1][1]
                if (held_in := self._epoch_of.get((former, partition))) is not None:
                    self.former.append((former, held_in, partition))
            before.append((at_s, member_id))
        for partition in mine - given:
            self._going_s.setdefault((member_id, partition), at_s)
        for partition in given:
            self._going_s.pop((member_id, partition), None)
        mine |= given
        return found

    def _may_be_gone(self, member_id: str, at_s: float) -> bool:
        """Return whether its coordinator may have removed it, with all its partitions."""
        silent = at_s - self._heard_s.get(member_id, 0.0) >= SURELY * self._session_s
        going_s = min((since_s for (member, _), since_s in self._going_s.items() if member == member_id), default=at_s)
        return silent or at_s - going_s >= SURELY * self._rebalance_s

    def commit_acknowledged(self, commit: CommitKey, arrived_s: float, at_s: float) -> list[str]:
        if commit.generation < 0:
            return []
        owners = [member for since_s, member in self._given.get(commit.partition, ()) if since_s < arrived_s]
        self._raise_floor(commit.partition, commit.offset, commit.generation, at_s, f"acknowledged to {commit[0]}")
        if owners and owners[-1] == commit.member_id:
            return []
        if commit.partition in self._claims.get(commit.member_id, ()):
            return []
        return [
            f"fenced: the commit of {commit.offset} for {commit.partition} by {commit.member_id} in epoch "
            f"{commit.generation} was acknowledged; when it was asked for, the partition was "
            f"{owners[-1] if owners else 'nobody'}'s"
        ]

    def _came_late(self, partition: TopicPartition, offset: int, floor: _Floor) -> bool:
        """Return whether a member's commit may have been delayed in transit, in whatever epoch."""
        arrivals = self._arrived.get(partition, ())
        higher_s = min((a.at_s for a in arrivals if a.commit.offset == floor.offset), default=floor.told_s)
        return any(a.commit.offset == offset and a.at_s >= higher_s for a in arrivals)

    def _floor_at_begin(self, commit: CommitKey) -> int:
        begun = [since_s for since_s, member in self._given.get(commit.partition, ()) if member == commit.member_id]
        if not begun:
            return 0
        return max((f.offset for f in self._floors.get(commit.partition, ()) if f.told_s < begun[-1]), default=0)


class MixedGroupJudge(GroupJudge):
    """The judge of a group whose members speak either protocol, by what its members see. They do not see whether one of
    them or the coordinator divides the partitions, so it does not judge who may have one at an instant, nor who may
    commit; the simulation does (:mod:`tidelog.chaos.simulated.watch.mixed_groups`)."""

    def commit_acknowledged(self, commit: CommitKey, arrived_s: float, at_s: float) -> list[str]:
        self._raise_floor(commit.partition, commit.offset, commit.generation, at_s, f"acknowledged to {commit[0]}")
        return []
