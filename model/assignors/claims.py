"""Members' claims to partitions, and which claims to believe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member claims to own, and the generation in which it got them (-1: not given)."""

    partitions: tuple[TopicPartition, ...]
    generation: int


def undisputed(counts: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[str, list[TopicPartition]]:
    """Return the existing partitions that each member owns (``counts``: topic → number of partitions).

    Among several claims to one partition, the highest generation wins: an older claim comes from a member that missed a
    rebalance. If several have the highest, none wins. ``AbstractStickyAssignor`` does the same, except where its result
    depends on the order of a hash map: three claims, the highest met last.
    """
    generation_of: dict[TopicPartition, int] = {}
    owner_of: dict[TopicPartition, str | None] = {}
    for member in sorted(claims):
        claim = claims[member]
        for partition in dict.fromkeys(claim.partitions):
            if not 0 <= partition.partition < counts.get(partition.topic, 0):
                continue
            known = generation_of.get(partition)
            if known is None or claim.generation > known:
                generation_of[partition] = claim.generation
                owner_of[partition] = member
            elif claim.generation == known:
                owner_of[partition] = None
    owned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(claims)}
    for partition, owner in owner_of.items():
        if owner is not None:
            owned[owner].append(partition)
    return owned


def outdated(claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Return partitions' last holders, by claims older than the newest generation that any member knows."""
    newest = max((claim.generation for claim in claims.values()), default=-1)
    holder_of: dict[TopicPartition, str] = {}
    generation_of: dict[TopicPartition, int] = {}
    for member in sorted(claims):
        claim = claims[member]
        if claim.generation < newest:
            for partition in claim.partitions:
                if partition not in generation_of or claim.generation > generation_of[partition]:
                    generation_of[partition] = claim.generation
                    holder_of[partition] = member
    return holder_of


def still_held(parts: Mapping[str, Sequence[TopicPartition]], claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Return the partitions of ``parts`` that their new owner cannot have yet: another member may be reading them.

    That is the case if another member claims a partition, and the new owner does not claim it with a higher generation.
    Source: ``CooperativeStickyAssignor.computePartitionsTransferringOwnership``; this is stricter if two members claim
    a partition with the same generation and one of them gets it.
    """
    claimants: dict[TopicPartition, list[str]] = {}
    for member in sorted(claims):
        for partition in dict.fromkeys(claims[member].partitions):
            claimants.setdefault(partition, []).append(member)
    held: dict[TopicPartition, str] = {}
    for owner, partitions in parts.items():
        for partition in partitions:
            claiming = claimants.get(partition, ())
            own_generation = claims[owner].generation if owner in claiming else None
            for member in claiming:
                if member != owner and (own_generation is None or claims[member].generation >= own_generation):
                    held[partition] = owner
                    break
    return held
