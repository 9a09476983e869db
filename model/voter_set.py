"""The quorum's voters: nodes *with their directories*, and the only place that counts majorities.

A voter is a node's id and the id of its metadata log's directory (KIP-853). A directory gets its random id with its
journal, so an emptied or replaced disk comes back as a new voter: its votes and acknowledgements do not count until the
others have admitted it.

The *seats* of a quorum are its node ids and never change. A set is a log entry, in force from its append; if it is
truncated, the previous one is in force again. A seat changes hands in two entries: the old directory leaves it, and
once that is committed the new one takes it. Each step changes one voter, so any majority before it and any majority
after it share a voter; a swap in a single step would break that (``tests/quorum/test_voter_set.py`` shows both by
checking all sets).

Release 0.1 had no directories: the node with a seat's id voted. :func:`directory_of_seat` derives the directory of such
a voter, the same on every node, so that its quorum is a set like any other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import DirectoryId, NodeId, id_text

_HEAD: Final = struct.Struct("<BHH")
_VOTER: Final = struct.Struct("<q16s")
_VACANT: Final = struct.Struct("<q")
_VERSION: Final = 0


class Voter(NamedTuple):
    """A node with one directory."""

    node_id: NodeId
    directory_id: DirectoryId

    def __str__(self) -> str:
        return f"node {self.node_id} with directory {id_text(self.directory_id)}"


def directory_of_seat(cluster_id: str, node_id: NodeId) -> DirectoryId:
    """Return the directory id of a release 0.1 voter, whatever disk it is on."""
    return DirectoryId(hashlib.sha256(f"{cluster_id} {node_id}".encode()).digest()[:16])


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters in force from some log entry on, and the vacant seats."""

    voters: tuple[Voter, ...]
    """Sorted by node id, without repetition."""
    vacant: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        ids = [voter.node_id for voter in self.voters]
        if not ids or ids != sorted(set(ids)) or set(ids) & set(self.vacant):
            raise ValueError(f"expected at least one voter, each seat once, in order; found {ids}, {self.vacant}")

    def __contains__(self, voter: object) -> bool:
        return voter in self.voters

    @property
    def seats(self) -> tuple[NodeId, ...]:
        return tuple(sorted((*(voter.node_id for voter in self.voters), *self.vacant)))

    def has_majority(self, found: Iterable[Voter]) -> bool:
        """Return whether more than half of the voters are among ``found``; others do not count."""
        return 2 * len(set(found).intersection(self.voters)) > len(self.voters)

    def without(self, node_id: NodeId) -> VoterSet:
        """Return the set after a voter left its seat."""
        return VoterSet(
            tuple(voter for voter in self.voters if voter.node_id != node_id),
            tuple(sorted({*self.vacant, node_id})),
        )

    def admitting(self, newcomer: Voter) -> VoterSet:
        """Return the set after a voter took a vacant seat. Raises ``ValueError`` if it is not vacant."""
        if newcomer.node_id not in self.vacant:
            raise ValueError(f"expected a vacant seat of {self.vacant}, found {newcomer}")
        return VoterSet(
            tuple(sorted((*self.voters, newcomer))), tuple(seat for seat in self.vacant if seat != newcomer.node_id)
        )

    def encode(self) -> bytes:
        head = _HEAD.pack(_VERSION, len(self.voters), len(self.vacant))
        return head + b"".join((*(_VOTER.pack(*voter) for voter in self.voters), *map(_VACANT.pack, self.vacant)))

    @classmethod
    def decode(cls, data: bytes) -> VoterSet:
        """Read the output of :meth:`encode`. Raises ``ValueError`` for anything else."""
        try:
            version, voters, vacant = _HEAD.unpack_from(data)
            at = _HEAD.size + voters * _VOTER.size
            if version != _VERSION or len(data) != at + vacant * _VACANT.size:
                raise ValueError(f"expected a voter set of version {_VERSION}, found {len(data)} bytes of {version}")
            return cls(
                tuple(
                    Voter(NodeId(node_id), DirectoryId(directory))
                    for node_id, directory in _VOTER.iter_unpack(data[_HEAD.size : at])
                ),
                tuple(NodeId(seat) for (seat,) in _VACANT.iter_unpack(data[at:])),
            )
        except struct.error as error:
            raise ValueError(f"expected a voter set, found {len(data)} bytes: {error}") from None

    def __str__(self) -> str:
        vacant = f"; vacant: {', '.join(map(str, self.vacant))}" if self.vacant else ""
        return ", ".join(map(str, self.voters)) + vacant
