"""Mutants of H10 that the quorum scenario must catch: the voters, and how they change.

What no run of the scenario can show is held by tests of their own in ``test_membership.py``: that a founding waits
for everybody and is one node's to do, that what an observer acknowledged in an earlier term does not count, that a
directory without leave takes no part, that a vote is given again to the same directory only (an emptied one never
asks in a term in which it voted), and that a pre-vote of an observer does not count (which would cost no more than
an election that is lost).
"""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_QUORUM: Final = "tidelog.metadata_quorum."
_ELECTION: Final = _QUORUM + "raft.election"
_ENGINE: Final = _QUORUM + "raft.engine"
_JOURNAL: Final = _QUORUM + "raft.journal"
_MEMBERSHIP: Final = _QUORUM + "raft.membership"
_SENDING: Final = _QUORUM + "raft.sending"


def _mutant(name: str, what: str, module: str, old: str, new: str, *more: Edit) -> Mutant:
    return Mutant(f"quorum-{name}", "H10", what, module, old, new, "quorum", more)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "emptied-directory-votes",
        "a directory that was emptied takes the seat of the one before it, unasked",
        _MEMBERSHIP,
        "        if self.journal.me in message.voters:\n            self.journal.found(message.voters)\n",
        "        if True:\n"
        "            me = self.journal.me\n"
        "            others = message.voters.without(me.node_id)\n"
        "            self.journal.found(others.admitting(me))\n",
    ),
    _mutant(
        "any-directory-elects",
        "a vote counts whatever directory it comes from",
        _ELECTION,
        "        if voters is None or node.voter not in voters:\n            return\n",
        "",
    ),
    _mutant(
        "any-directory-commits",
        "what a node acknowledges counts whatever directory it stands on",
        _SENDING,
        "            self._peer(voter) for voter in (() if voters is None else voters.voters)",
        "            self._linked.get(voter.node_id, self._peer(voter))\n"
        "            for voter in (() if voters is None else voters.voters)",
    ),
    _mutant(
        "directories-exchanged-at-once",
        "the new directory takes the seat in the entry in which the old one leaves it",
        _MEMBERSHIP,
        "voters.admitting(newcomer.voter) if vacant else voters.without(seat))\n",
        "(voters if vacant else voters.without(seat)).admitting(newcomer.voter))\n",
    ),
    _mutant(
        "voters-changed-while-pending",
        "a change of voters begins before the one before is committed",
        _MEMBERSHIP,
        "        if journal.voters_index > self.commit_index:\n            return\n",
        "",
    ),
    _mutant(
        "voters-changed-before-own-term",
        "a leader changes the voters before an entry of its own term is committed",
        _MEMBERSHIP,
        "        if not self.is_leader or voters is None or self._led_term != self.term or journal.is_old:\n",
        "        if not self.is_leader or voters is None or journal.is_old:\n",
    ),
    _mutant(
        "laggard-admitted",
        "a newcomer is admitted before it has what is committed",
        _MEMBERSHIP,
        "        return recently and self._SyncObj__raftMatchIndex[node] >= self.commit_index\n",
        "        return recently\n",
    ),
    _mutant(
        "voters-in-force-late",
        "a change of voters is in force once it is committed, not as soon as it is in the log",
        _MEMBERSHIP,
        "        voters = self.journal.voters\n        if voters is self._in_force:\n",
        "        known = self.journal.voters_at(self.commit_index)\n"
        "        voters = known and known[1]\n"
        "        if voters is self._in_force:\n",
        Edit(
            _SENDING,
            "        voters = self.journal.voters\n",
            "        known = self.journal.voters_at(self.commit_index)\n        voters = known and known[1]\n",
        ),
    ),
    _mutant(
        "truncated-voters-stay",
        "a change of voters stays in force though its entry is truncated",
        _JOURNAL,
        "        while self._voters and self._voters[-1][0] >= max(index, 1):\n            self._voters.pop()\n",
        "",
    ),
    _mutant(
        "snapshot-without-voters",
        "a snapshot does not name the voters",
        _ENGINE,
        "Snapshot(index, term, state, None if known is None else known[1])",
        "Snapshot(index, term, state)",
    ),
    _mutant(
        "snapshot-with-latest-voters",
        "a snapshot holds the voters of the end of the log, not those of its last entry",
        _ENGINE,
        "        known = None if journal.is_old else journal.voters_at(index)\n",
        "        known = None if journal.is_old else journal.voters_at(journal.last_index)\n",
    ),
    _mutant(
        "compaction-forgets-voters",
        "a journal that is cut does not keep the voters at its beginning",
        _JOURNAL,
        "        known = self.voters_at(first) if voters is None else (first, voters)\n",
        "        known = None if voters is None else (first, voters)\n",
    ),
)
