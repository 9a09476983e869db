"""One member's next step from what it has to what its target gives it. Pure.

Source: ``CurrentAssignmentBuilder`` as of Kafka 4.3 (KIP-848, KIP-1251; KAFKA-19431, KAFKA-19449, KAFKA-19974). A
partition is free for a member if nobody has it, and nobody still has to give it up. Only this keeps two members from
having it simultaneously.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from tidelog.groups.state.consumer_group import MemberState
from tidelog.groups.state.topics import Topics
from tidelog.model.ids import TopicId
from tidelog.proto.logs.consumer_group_records import CurrentAssignment, Owned, Partitions

Owners = Mapping[tuple[TopicId, int], str]
"""Partition → the member that has it or still has to give it up."""


class Subscribed:
    """The topics that a member wants, by id."""

    __slots__ = ("_names", "_topics")

    def __init__(self, topics: Topics, names: Container[str | None]) -> None:
        self._topics = topics
        self._names = names

    def __contains__(self, topic_id: object) -> bool:
        return isinstance(topic_id, bytes) and self._topics.name_of(TopicId(topic_id)) in self._names


def next_step(
    member_id: str,
    now: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    owners: Owners,
    subscribed: Container[TopicId],
) -> CurrentAssignment:
    """Return the member's next assignment; ``now`` itself if it has to wait.

    ``owned``: what it says that it has, None if it does not say. ``subscribed``: the topics that it wants; what it has
    of others goes at once, without waiting for a new target.
    """
    if now.state == MemberState.UNREVOKED_PARTITIONS and _holds(owned, now.pending):
        return _without_unwanted(now, owned, subscribed)
    if now.state == MemberState.STABLE and now.epoch == target_epoch:
        return _without_unwanted(now, owned, subscribed)
    wanted = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
    kept, revoked = _split(now.assigned, wanted)
    if revoked and _holds(owned, revoked):
        # The epoch stays: at one epoch a partition belongs to one member only (KAFKA-19974).
        return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked)
    unreleased = False
    for topic_id, partitions in wanted.items():
        for partition in sorted(partitions - kept.get(topic_id, {}).keys()):
            if owners.get((topic_id, partition), member_id) == member_id:
                kept.setdefault(topic_id, {})[partition] = target_epoch
            else:
                unreleased = True
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    previous = now.epoch if now.epoch != target_epoch else now.previous_epoch
    found = CurrentAssignment(target_epoch, previous, state, kept, {})
    return now if found == now else found


def _without_unwanted(
    now: CurrentAssignment, owned: Partitions | None, subscribed: Container[TopicId]
) -> CurrentAssignment:
    """Drop topics that the member no longer wants (KAFKA-19431); it gives them up within its epoch."""
    if all(topic_id in subscribed for topic_id in now.assigned):
        return now
    kept = {topic_id: dict(epochs) for topic_id, epochs in now.assigned.items() if topic_id in subscribed}
    dropped = {topic_id: dict(epochs) for topic_id, epochs in now.assigned.items() if topic_id not in subscribed}
    if now.state != MemberState.UNREVOKED_PARTITIONS and not _holds(owned, dropped):
        return replace(now, assigned=kept)
    pending = {topic_id: dict(epochs) for topic_id, epochs in now.pending.items()}
    for topic_id, epochs in dropped.items():
        pending.setdefault(topic_id, {}).update(epochs)
    return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=pending)


def _split(assigned: Owned, target: Partitions) -> tuple[dict[TopicId, dict[int, int]], dict[TopicId, dict[int, int]]]:
    """Return what stays with the member, and what it must give up."""
    kept: dict[TopicId, dict[int, int]] = {}
    revoked: dict[TopicId, dict[int, int]] = {}
    for topic_id, epochs in assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, epoch in epochs.items():
            (kept if partition in wanted else revoked).setdefault(topic_id, {})[partition] = epoch
    return kept, revoked


def _holds(owned: Partitions | None, revoked: Owned) -> bool:
    """Return whether the member may still have one of these partitions: it does, or does not say."""
    if owned is None:
        return True
    return any(not owned.get(topic_id, frozenset()).isdisjoint(epochs) for topic_id, epochs in revoked.items())
