"""The quorum's voters: nodes *with their directories*, and the one place where a majority is counted.

A voter is a node's id and the id of its metadata log's directory (KIP-853). A directory's id is drawn when its
journal is made, so a disk that was emptied or exchanged comes back as somebody new, whose votes and
acknowledgements count for nothing until the others have admitted it.

The *seats* of a quorum are its node ids and never change. A set is an entry of the log, in force as soon as it is
appended, and the one before is in force again if it is truncated. A seat changes hands in two entries: the old
directory leaves it, and once that is committed the new one takes it. Each step changes one voter, so that any
majority before and any majority after it have a voter in common; exchanging one for the other in a single step
would not do (``tests/quorum/test_voter_set.py`` shows both by going through all sets).

Release 0.1 knew no directories: whoever had a seat's node id voted. :func:`directory_of_seat` names the directory of
such a voter, the same on every node, so that its quorum is a set like any other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model.ids import DirectoryId, NodeId, id_text

_HEAD: Final = struct.Struct("<BHH")
_VOTER: Final = struct.Struct("<q16s")
_VACANT: Final = struct.Struct("<q")
_VERSION: Final = 0


class Voter(NamedTuple):
    """A node on one directory."""

    node_id: NodeId
    directory_id: DirectoryId

    def __str__(self) -> str:
        return f"node {self.node_id} with directory {id_text(self.directory_id)}"


def directory_of_seat(cluster_id: str, node_id: NodeId) -> DirectoryId:
    """The id of the directory that a voter of release 0.1 has, whatever disk it is on."""
    return DirectoryId(hashlib.sha256(f"{cluster_id} {node_id}".encode()).digest()[:16])


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters in force from some entry of the log on, and the seats that nobody holds."""

    voters: tuple[Voter, ...]
    """In rising order of node ids, each once."""
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
        """Whether more than half of the voters are among ``found``; what is no voter counts for nothing."""
        return 2 * len(set(found).intersection(self.voters)) > len(self.voters)

    def without(self, node_id: NodeId) -> VoterSet:
        """The set after a seat was left."""
        return VoterSet(
            tuple(voter for voter in self.voters if voter.node_id != node_id),
            tuple(sorted({*self.vacant, node_id})),
        )

    def admitting(self, newcomer: Voter) -> VoterSet:
        """The set after a vacant seat was taken. Raises ``ValueError`` where it is not vacant."""
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
        """Raises ``ValueError`` for anything but what :meth:`encode` returned."""
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
