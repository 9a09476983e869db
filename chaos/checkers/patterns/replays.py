"""What a replay into a copy owes its readers. Pure.

For readers of what is committed, a finished copy has each record of its range that counts in the source once, as it
was, in the order of its partition; whatever was killed, and however often the replay was begun again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tidelog.model.ids import TopicPartition


class Replayed(NamedTuple):
    """A finished replay: from offset ``start`` of each partition to before its end."""

    replay_id: str
    target: str
    start: int
    ends: Mapping[TopicPartition, int]
    same_partitions: bool
    """Whether source and target have equally many partitions, so that records keep theirs."""


class Copied(NamedTuple):
    """A record of a target, as a reader of what is committed got it."""

    replay_id: str
    at: TopicPartition
    offset: int
    origin: tuple[TopicPartition, int]
    value: bytes


def judge_replays(
    source: Mapping[TopicPartition, Sequence[tuple[int, bytes]]],
    replays: Sequence[Replayed],
    copies: Sequence[Copied],
) -> Iterator[str]:
    """``source``: the records that count, offset and value each. ``copies``: all that there are, in their order."""
    found: dict[str, list[Copied]] = {}
    for copy in copies:
        found.setdefault(copy.replay_id, []).append(copy)
    for unknown in found.keys() - {replay.replay_id for replay in replays}:
        yield f"replay: {unknown} has copies, and was never finished"
    for replay in replays:
        own = found.get(replay.replay_id, [])
        yield from (f"replay: {replay.replay_id}: {text}" for text in _each_once(source, replay, own))
        yield from (f"replay: {replay.replay_id}: {text}" for text in _in_order(replay, own))


def _each_once(
    source: Mapping[TopicPartition, Sequence[tuple[int, bytes]]], replay: Replayed, copies: Sequence[Copied]
) -> Iterator[str]:
    wanted = {
        (at, offset): value
        for at, end in replay.ends.items()
        for offset, value in source[at]
        if replay.start <= offset < end
    }
    places: dict[tuple[TopicPartition, int], Copied] = {}
    for copy in copies:
        if copy.origin not in wanted:
            yield f"{_name(copy.origin)} was copied, and is not in its range, or does not count"
        elif copy.origin in places:
            yield f"{_name(copy.origin)} was copied twice, to {places[copy.origin].offset} and {copy.offset}"
        elif copy.value != wanted[copy.origin]:
            yield f"{_name(copy.origin)} was copied with another value"
        places[copy.origin] = copy
    for origin in wanted.keys() - places.keys():
        yield f"{_name(origin)} was not copied; its range goes to {replay.ends[origin[0]]}"


def _in_order(replay: Replayed, copies: Sequence[Copied]) -> Iterator[str]:
    last: dict[tuple[TopicPartition, TopicPartition], int] = {}
    for copy in copies:
        at, offset = copy.origin
        if copy.at.topic != replay.target or (replay.same_partitions and copy.at.partition != at.partition):
            yield f"{_name(copy.origin)} was copied to {copy.at}"
        if offset < last.get((at, copy.at), -1):
            yield f"{_name(copy.origin)} was copied after offset {last[at, copy.at]}"
        last[at, copy.at] = offset


def _name(origin: tuple[TopicPartition, int]) -> str:
    return f"{origin[0]} offset {origin[1]}"
