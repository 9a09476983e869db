"""Mutants that the quorum scenario must catch: every hardening rule of ``docs/quorum.md``, H1 to H11,
but for H10, which has a file of its own.

Rules that cover each other are taken out together. What no run of the scenario can show, because the
scenario has no such thing, is held by tests of its own:

- H1, the exact version: ``test_reproductions.py`` and ``test_quorum.py`` (another version is refused at import);
- H4, that a committed entry is never overwritten, and H5, that two leaders of one term stop a node, are
  guards behind the other rules, and by themselves have nothing to do; likewise that after a failed sync the
  journal stays unusable, since the node has stopped: ``test_engine.py``, ``test_journal.py``;
- H5, that a vote is given again to the same candidate: ``test_engine.py``;
- H7, streams, hellos and that nothing of pysyncobj's is ever sent: ``test_quorum.py``, ``test_raft_messages.py``;
- H8, what a listener's exception does, and the barrier that callers share: ``test_quorum.py``;
- H10, the voters: ``quorum_membership_mutants.py``, beside this file.
"""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_QUORUM: Final = "tidelog.metadata_quorum."
_BASE: Final = _QUORUM + "raft.base"
_ELECTION: Final = _QUORUM + "raft.election"
_ENGINE: Final = _QUORUM + "raft.engine"
_JOURNAL: Final = _QUORUM + "raft.journal"
_RECORDS: Final = _QUORUM + "raft.journal_records"
_SENDING: Final = _QUORUM + "raft.sending"
_SNAPSHOT: Final = _QUORUM + "raft.snapshot"
_STORAGE: Final = _QUORUM + "raft.storage"


def _mutant(name: str, rule: str, what: str, module: str, old: str, new: str, *more: Edit) -> Mutant:
    return Mutant(f"quorum-{name}", rule, what, module, old, new, "quorum", more)


def _in_pysyncobj(name: str, rule: str, what: str, old: str, new: str) -> Mutant:
    """One rule of the engine below, changed in the private copy of its source."""
    load = "    private.loader.exec_module(module)\n"
    changed = (
        "    source = Path(spec.origin).read_text()\n"
        f"    assert source.count({old!r}) == 1\n"
        f"    exec(compile(source.replace({old!r}, {new!r}), spec.origin, 'exec'), module.__dict__)\n"
    )
    return _mutant(name, rule, what, _BASE, load, changed)


_H2: Final = (
    _mutant(
        "journal-unchecked",
        "H2",
        "a record's checksum is not looked at",
        _RECORDS,
        "    return body if crc32c(body, crc32c(_POSITION.pack(position))) == crc else None\n",
        "    return body\n",
    ),
    _mutant(
        "journal-position-unchecked",
        "H2",
        "the checksum does not cover the position: a payload can look like a record",
        _RECORDS,
        "    return body if crc32c(body, crc32c(_POSITION.pack(position))) == crc else None\n",
        "    return body if crc32c(body) == crc else None\n",
        Edit(
            _RECORDS,
            "    return _HEAD.pack(_MAGIC, len(body), crc32c(body, crc32c(_POSITION.pack(position)))) + body\n",
            "    return _HEAD.pack(_MAGIC, len(body), crc32c(body)) + body\n",
        ),
    ),
    _mutant(
        "journal-damage-cut-off",
        "H2",
        "damage in the middle is taken for a torn tail",
        _JOURNAL,
        "            if later is not None:\n",
        "            if later is not None and end < 0:\n",
    ),
    _mutant(
        "journal-never-sealed",
        "H2",
        "nothing is put behind the last record once the tail is still",
        _JOURNAL,
        "        if self._sealed or self._must_sync or self._broken:\n            return\n",
        "        self._sealed = True\n        return\n",
    ),
    _mutant(
        "journal-two-records",
        "H2",
        "what becomes durable together is written as two records",
        _JOURNAL,
        "            write_all(self._file, framed, self._end)\n            self._file.fdatasync()\n",
        "            framed = record(bytes(self._changes[:-9]), self._end)\n"
        "            framed += record(bytes(self._changes[-9:]), self._end + len(framed))\n"
        "            write_all(self._file, framed, self._end)\n"
        "            self._file.fdatasync()\n",
    ),
    _mutant(
        "journal-rewrite-unsynced",
        "H2",
        "a new journal takes the old one's place before it is synced",
        _JOURNAL,
        "        file.fdatasync()\n        self._files.rename(temporary, self.path)\n",
        "        self._files.rename(temporary, self.path)\n",
    ),
    _mutant(
        "journal-rewrite-synced-late",
        "H2",
        "a new journal is synced only after it took the old one's place",
        _JOURNAL,
        "        file.fdatasync()\n"
        "        self._files.rename(temporary, self.path)\n"
        "        self._files.fsync_dir(self._directory)\n",
        "        self._files.rename(temporary, self.path)\n"
        "        self._files.fsync_dir(self._directory)\n"
        "        file.fdatasync()\n",
    ),
    _mutant(
        "journal-rename-not-durable",
        "H2",
        "the directory is not synced after a new journal took its place",
        _JOURNAL,
        "        self._files.rename(temporary, self.path)\n        self._files.fsync_dir(self._directory)\n",
        "        self._files.rename(temporary, self.path)\n",
    ),
    _mutant(
        "page-cache-believed",
        "H2",
        "what a failed sync or a kill left in the page cache is taken for durable",
        _JOURNAL,
        "        write_all(self._file, data[before_last:end], before_last)\n        self._file.fdatasync()\n",
        "",
    ),
    _mutant(
        "failed-sync-believed",
        "H2",
        "what a failed sync left in the page cache is synced and not written again",
        _JOURNAL,
        "        write_all(self._file, data[before_last:end], before_last)\n",
        "",
    ),
    _mutant(
        "directory-name-not-durable",
        "H2",
        "the name of the quorum's own directory is not synced",
        _STORAGE,
        "    _make_durably(files, directory)\n    files.fsync_dir(directory)",
        "    files.makedirs(directory)\n    files.fsync_dir(directory)",
    ),
    _mutant(
        "names-not-synced-at-start",
        "H2",
        "a rename of a process that was killed before it synced it is taken for durable",
        _STORAGE,
        "    files.fsync_dir(directory)  # a kill may have come between a rename and its becoming durable\n",
        "",
    ),
)

_H3: Final = (
    _mutant(
        "no-fsync",
        "H3",
        "the journal is written and not synced",
        _JOURNAL,
        "            write_all(self._file, framed, self._end)\n            self._file.fdatasync()\n",
        "            write_all(self._file, framed, self._end)\n",
    ),
    _mutant(
        "vote-not-synced",
        "H3",
        "term and vote wait for the next entry to be synced",
        _JOURNAL,
        "        self._changed(self._vote_change())\n",
        "        self._changes += self._vote_change()\n",
    ),
    _mutant(
        "vote-forgotten",
        "H3",
        "the vote is not read back at restart",
        _JOURNAL,
        "        self._vote = None if vote < 0 else NodeId(vote)\n        self.vote_directory = D",
        "        self.vote_directory = D",
    ),
    _mutant(
        "term-forgotten",
        "H3",
        "the term is not read back at restart",
        _JOURNAL,
        "        _, self._term, vote, directory = _VOTE.unpack_from(body, at)\n",
        "        _, _, vote, directory = _VOTE.unpack_from(body, at)\n",
    ),
    _mutant(
        "said-before-synced",
        "H3",
        "a candidate asks for votes before its own vote is durable",
        _ENGINE,
        "            self._give_up_election()\n        self.journal.sync()\n",
        "            self._give_up_election()\n",
    ),
)

_H4: Final = (
    _mutant(
        "truncates-without-conflict",
        "H4",
        "entries that a batch brings again, and all after them, are removed first",
        _ENGINE,
        "        if known == entry.term:\n",
        "        if known == entry.term and index <= max(self.commit_index, self.applied_index):\n",
    ),
    _mutant(
        "keeps-conflicting-entries",
        "H4",
        "an entry of another term in the same place is kept",
        _ENGINE,
        "        if known == entry.term:\n",
        "        if known is not None:\n",
    ),
    _mutant(
        "previous-entry-unchecked",
        "H4",
        "entries are appended though the one before them is of another term",
        _ENGINE,
        "        elif self.journal.term_at(previous) != message.previous_term:\n",
        "        elif self.journal.term_at(previous) is None:\n",
    ),
    _mutant(
        "acknowledges-whole-log",
        "H4",
        "an answer acknowledges everything in the log, not what the message proved",
        _ENGINE,
        "            self._answer(node, success=True, reset=False, next_index=matched + 1)\n",
        "            self._answer(node, success=True, reset=False)\n",
    ),
    _mutant(
        "commits-beyond-match",
        "H4",
        "the commit index is not held within what matched",
        _ENGINE,
        "        commit = min(message.commit_index, matched)\n",
        "        commit = min(message.commit_index, self.journal.last_index)\n",
    ),
    _mutant(
        "mismatch-answered-with-end",
        "H4",
        "what does not fit is answered with the end of the log, not of its committed part",
        _ENGINE,
        "            self._answer(node, success=False, reset=True, next_index=self.commit_index + 1)\n",
        "            self._answer(node, success=False, reset=True)\n",
    ),
    _in_pysyncobj(
        "commits-older-terms",
        "H4",
        "an entry of an older term is committed by counting its copies",
        "                if commitTerm != self.__raftCurrentTerm:\n",
        "                if False:\n",
    ),
    _in_pysyncobj(
        "commits-by-less-than-majority",
        "H4",
        "one voter less than a majority commits",
        "                if count <= (len(self.__otherNodes) + 1) / 2:\n                    break\n",
        "                if count <= (len(self.__otherNodes) + 1) / 2 - 1:\n                    break\n",
    ),
)

_ON_RESULT: Final = (
    "        if message.term > self.term:\n"
    "            self._step_down(message.term)\n"
    "            return\n"
    "        if message.term < self.term or not self.is_leader:\n"
    "            return\n"
    "        if message.next_index > self.journal.last_index + 1:\n"
)

_H5: Final = (
    _mutant(
        "stale-acknowledgements",
        "H5",
        "an acknowledgement of an older term counts",
        _SENDING,
        _ON_RESULT,
        _ON_RESULT.replace("message.term < self.term or not", "not"),
    ),
    _mutant(
        "higher-term-ignored",
        "H5",
        "an answer of a higher term does not depose the leader",
        _SENDING,
        _ON_RESULT,
        _ON_RESULT.replace("            self._step_down(message.term)\n            return\n", "            pass\n"),
    ),
    _mutant(
        "next-index-goes-back",
        "H5",
        "a late answer takes the next index back: what is under way is sent again",
        _SENDING,
        "            self._SyncObj__raftNextIndex[node] = max(before, self._SyncObj__raftNextIndex[node])\n",
        "            pass\n",
    ),
    _mutant(
        "votes-counted-twice",
        "H5",
        "a vote that arrives twice counts twice",
        _ELECTION,
        "        if message.term == self.term and node.voter not in self._votes[1]:\n",
        "        if message.term == self.term:\n",
    ),
    _mutant(
        "old-votes-count",
        "H5",
        "a vote of an earlier election counts in this one",
        _ELECTION,
        "        if message.term == self.term and node.voter not in self._votes[1]:\n"
        "            self._votes[1].add(node.voter)\n"
        '            self._to_pysyncobj(node, type="response_vote", term=message.term)\n',
        "        if node.voter not in self._votes[1]:\n"
        "            self._votes[1].add(node.voter)\n"
        '            self._to_pysyncobj(node, type="response_vote", term=self.term)\n',
    ),
    _in_pysyncobj(
        "votes-twice",
        "H5",
        "a voter votes for two candidates in a term",
        "                    if self.__votedForNodeId is not None:\n",
        "                    if False:\n",
    ),
    _in_pysyncobj(
        "votes-for-older-log",
        "H5",
        "a candidate whose last entry is of an older term gets a vote",
        "                    if lastLogTerm < self.__getCurrentLogTerm():\n",
        "                    if False:\n",
    ),
    _in_pysyncobj(
        "votes-for-shorter-log",
        "H5",
        "a candidate whose log is shorter gets a vote",
        "                            lastLogIdx < self.__getCurrentLogIndex():\n",
        "                            False:\n",
    ),
)

_H6: Final = (
    _mutant(
        "snapshot-unsynced",
        "H6",
        "a snapshot takes its name before it is synced",
        _SNAPSHOT,
        "            write_all(file, snapshot.state, len(head))\n            file.fdatasync()\n",
        "            write_all(file, snapshot.state, len(head))\n",
    ),
    _mutant(
        "received-snapshot-unsynced",
        "H6",
        "a received snapshot takes its name before it is synced",
        _SNAPSHOT,
        "        self._file.fdatasync()\n        expected = self._snapshot\n",
        "        expected = self._snapshot\n",
    ),
    _mutant(
        "snapshot-name-not-durable",
        "H6",
        "the journal is cut before the snapshot's name is durable",
        _SNAPSHOT,
        "        self._files.rename(temporary, self.path)\n        self._files.fsync_dir(self._directory)\n",
        "        self._files.rename(temporary, self.path)\n",
        Edit(
            _JOURNAL,
            "        self._files.fsync_dir(self._directory)\n        replaced, ",
            "        replaced, ",
        ),
    ),
    _mutant(
        "snapshot-unchecked",
        "H6",
        "a snapshot's checksum is not looked at",
        _SNAPSHOT,
        "    if found != expected:\n",
        "    if found < 0:\n",
    ),
    _mutant(
        "snapshot-over-newer-commits",
        "H6",
        "a snapshot is installed though more is committed here",
        _ENGINE,
        "        if part.snapshot_index <= self.commit_index:  # never over newer commits",
        "        if part.snapshot_index < 0:  # never over newer commits",
    ),
    _mutant(
        "snapshot-cuts-suffix",
        "H6",
        "what the journal has after a received snapshot is thrown away",
        _ENGINE,
        "        keeps_suffix = journal.term_at(snapshot.index) == snapshot.term\n",
        "        keeps_suffix = False\n",
    ),
    _mutant(
        "snapshot-keeps-any-suffix",
        "H6",
        "what the journal has after a received snapshot is kept though it does not continue it",
        _ENGINE,
        "        keeps_suffix = journal.term_at(snapshot.index) == snapshot.term\n",
        "        keeps_suffix = journal.term_at(snapshot.index) is not None\n",
    ),
    _mutant(
        "journal-cut-before-snapshot",
        "H6",
        "the journal is cut before the snapshot is written",
        _ENGINE,
        "        self._snapshots.write(Snapshot(index, term, state, None if known is None else known[1]))\n",
        "",
        Edit(
            _ENGINE,
            "        self._effects.append(ev.Compacted(index, journal.first_index))\n",
            "        self._snapshots.write(Snapshot(index, term, state, None if known is None else known[1]))\n"
            "        self._effects.append(ev.Compacted(index, journal.first_index))\n",
        ),
    ),
    _mutant(
        "journal-cut-before-installed",
        "H6",
        "the journal is cut before the received snapshot has its name",
        _ENGINE,
        "        self._snapshots.install_incoming()\n",
        "",
        Edit(
            _ENGINE,
            "        journal.reset(kept, snapshot.voters)\n",
            "        journal.reset(kept, snapshot.voters)\n        self._snapshots.install_incoming()\n",
        ),
    ),
    _mutant(
        "journal-not-cut-at-start",
        "H6",
        "after a crash between installing a snapshot and cutting the journal they do not fit",
        _SNAPSHOT,
        "    if journal.term_at(snapshot.index) != snapshot.term:\n",
        "    if False:\n",
    ),
    _mutant(
        "lost-snapshot-unnoticed",
        "H6",
        "the name of a received snapshot is not synced, by nobody",
        _SNAPSHOT,
        "        self._files.rename(self._incoming_path, self.path)\n        self._files.fsync_dir(self._directory)\n",
        "        self._files.rename(self._incoming_path, self.path)\n",
        Edit(
            _JOURNAL,
            "        self._files.fsync_dir(self._directory)\n        replaced, ",
            "        replaced, ",
        ),
    ),
)

_H8: Final = (
    _mutant(
        "unknown-told-as-refused",
        "H8",
        "what was proposed and not settled when leadership ended is answered as not done",
        _ENGINE,
        "ev.ProposalEnded(ticket, ev.ProposalOutcome.UNKNOWN, -1)",
        "ev.ProposalEnded(ticket, ev.ProposalOutcome.NOT_LEADING, -1)",
    ),
    _mutant(
        "never-answered",
        "H8",
        "what was proposed and not settled when leadership ended is never answered",
        _ENGINE,
        "        for ticket in sorted(self._tickets):\n",
        "        for ticket in ():\n",
    ),
)

_H9: Final = (
    _mutant(
        "no-pre-vote",
        "H9",
        "a voter begins an election without asking whether it could win",
        _ELECTION,
        "        self._pre_vote = (self.term + 1, set())\n        for node in others:\n",
        "        self._pre_vote_won = True\n"
        "        self._SyncObj__raftElectionDeadline = step_time() - 1\n"
        "        for node in ():\n",
    ),
    _mutant(
        "no-stickiness",
        "H9",
        "a voter that hears a leader votes for another all the same",
        _ELECTION,
        "        if self.is_leader:\n"
        "            return step_time() < self._majority_lost_at()\n"
        "        recently = step_time() - self._heard_at < self._timing.election_min_s\n",
        "        recently = False\n",
    ),
    _mutant(
        "leads-alone",
        "H9",
        "a leader that no majority answers leads on for half a minute",
        _SENDING,
        "            leaderFallbackTimeout=timing.majority_lost_s,\n",
        "            leaderFallbackTimeout=30.0,\n",
        Edit(
            _ELECTION,
            "        return answered[needed - 1] + self._timing.majority_lost_s\n",
            "        return answered[needed - 1] + 30.0\n",
        ),
    ),
    _mutant(
        "leads-before-it-heard",
        "H9",
        "a leader is told to lead before it has heard every entry of earlier epochs",
        _ENGINE,
        "            self._receiver.abandon()\n        if new == FOLLOWER:\n",
        "            self._receiver.abandon()\n"
        "            self._led_term = self.term\n"
        "            self._effects.append(ev.Leading(self.term))\n"
        "        if new == FOLLOWER:\n",
    ),
)

_H11: Final = (
    _mutant(
        "epoch-unchecked",
        "H11",
        "neither the leader nor apply asks under which epoch a command was decided",
        _ENGINE,
        "        if not self.is_leader or epoch != self.term:\n",
        "        if not self.is_leader:\n",
        Edit(
            _ENGINE,
            "    valid = command[:1] == REGULAR_COMMAND and _EPOCH.unpack_from(command, 1)[0] == term\n",
            "    valid = command[:1] == REGULAR_COMMAND\n",
        ),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_H2, *_H3, *_H4, *_H5, *_H6, *_H8, *_H9, *_H11)
