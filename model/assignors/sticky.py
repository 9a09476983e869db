"""The sticky assignor: balanced, with as few moves as balance allows; members give up everything before a rebalance."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.model.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    RebalanceProtocol,
    Subscription,
    as_assignments,
    subscribed_topics,
)
from tidelog.model.assignors.claims import Claim, outdated, undisputed
from tidelog.model.assignors.equal_subscriptions import divide_equally
from tidelog.model.assignors.unequal_subscriptions import divide_unequally
from tidelog.model.ids import TopicPartition

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def divide_stickily(
    partitions_of: Mapping[str, int], members: Mapping[str, Subscription], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Assign with balance first, then the fewest moves. ``claims`` has every member.

    Balanced means that the members' loads differ by at most one or, with unequal subscriptions, that no member could
    take a partition from one with at least two more. Racks are ignored. Source: Kafka's ``AbstractStickyAssignor``.
    """
    counts = subscribed_topics(partitions_of, members)
    owned = undisputed(counts, claims)
    topics_of = {member: frozenset(said.topics) for member, said in members.items()}
    if len(set(topics_of.values())) <= 1:
        return divide_equally(counts, owned)
    return divide_unequally(counts, topics_of, owned, outdated(claims))


class StickyAssignor:
    """The sticky assignment for members that give up all partitions before they join.

    A member reports its former partitions in its user data, in the bytes of Kafka's ``StickyAssignor``, so that members
    on Kafka's client and on this one may share a group.
    """

    name: ClassVar[str] = "sticky"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def __init__(self) -> None:
        self._mine: Claim | None = None

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Return this member's last assignment and its generation; empty before the first one."""
        return b"" if self._mine is None else encode_claim(self._mine)

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Assign by the members' user data; unreadable user data counts as empty."""
        claims = {member: decode_claim(said.user_data) for member, said in members.items()}
        return as_assignments(divide_stickily(partitions_of, members, claims))

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Remember the assignment for the next rebalance."""
        self._mine = Claim(assignment.partitions, generation_id)


def encode_claim(claim: Claim) -> bytes:
    """Encode Kafka's ``StickyAssignorUserData`` version 1: an array of (topic, array of partitions), the generation.

    The bytes have no version. ``claim`` comes from a decoded assignment, so everything fits its field.
    """
    numbers_of: dict[str, list[int]] = {}
    for topic, number in claim.partitions:
        numbers_of.setdefault(topic, []).append(number)
    out = bytearray(_INT32.pack(len(numbers_of)))
    for topic, numbers in numbers_of.items():
        raw = topic.encode()
        out += struct.pack(f">h{len(raw)}si{len(numbers)}i", len(raw), raw, len(numbers), *numbers)
    out += _INT32.pack(claim.generation)
    return bytes(out)


def decode_claim(data: bytes) -> Claim:
    """Read version 1, or version 0, which ends before the generation. Unreadable bytes claim nothing."""
    partitions: list[TopicPartition] = []
    try:
        (topics,) = _INT32.unpack_from(data)
        if topics < 0:
            return Claim((), NO_GENERATION)
        at = _INT32.size
        for _ in range(topics):
            (size,) = _INT16.unpack_from(data, at)
            (raw, count) = struct.unpack_from(f">{size}si", data, at + _INT16.size)
            at += _INT16.size + size + _INT32.size
            topic = raw.decode()
            partitions += [TopicPartition(topic, n) for n in struct.unpack_from(f">{count}i", data, at)]
            at += count * _INT32.size
    except (struct.error, UnicodeDecodeError):
        return Claim((), NO_GENERATION)
    generation: int = _INT32.unpack_from(data, at)[0] if len(data) - at >= _INT32.size else NO_GENERATION
    return Claim(tuple(partitions), generation)
