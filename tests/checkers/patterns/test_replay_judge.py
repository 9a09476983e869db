"""The judge of replays into a copy: one history that is right, and each way in which it can be wrong."""

from __future__ import annotations

import pytest

from tidelog.chaos.checkers.patterns.replays import Copied, Replayed, judge_replays
from tidelog.model.ids import TopicPartition

S0, S1 = TopicPartition("source", 0), TopicPartition("source", 1)
C0, C1 = TopicPartition("copy", 0), TopicPartition("copy", 1)
SOURCE = {S0: [(0, b"a"), (1, b"b"), (4, b"c"), (5, b"late")], S1: [(3, b"d")]}
REPLAY = Replayed("r", "copy", 1, {S0: 5, S1: 9}, same_partitions=True)
B, C, D = Copied("r", C0, 0, (S0, 1), b"b"), Copied("r", C0, 1, (S0, 4), b"c"), Copied("r", C1, 0, (S1, 3), b"d")


def judge(*copies: Copied, replay: Replayed = REPLAY) -> list[str]:
    return list(judge_replays(SOURCE, [replay], copies))


def test_what_is_right_is_right() -> None:
    assert judge(B, C, D) == judge(D, B, C) == []
    assert judge(B, C, D._replace(at=C0, offset=2), replay=REPLAY._replace(same_partitions=False)) == []


@pytest.mark.parametrize(
    ("copies", "wrong"),
    [
        ((B, D), "source-0 offset 4 was not copied; its range goes to 5"),
        ((B, C, D, C._replace(offset=2)), "source-0 offset 4 was copied twice, to 1 and 2"),
        ((C._replace(offset=0), B._replace(offset=1), D), "source-0 offset 1 was copied after offset 4"),
        ((B._replace(origin=(S0, 0)), B, C, D), "source-0 offset 0 was copied, and is not in its range"),
        ((B, C, D, C._replace(origin=(S0, 5))), "source-0 offset 5 was copied, and is not in its range"),
        ((B, C._replace(value=b"x"), D), "source-0 offset 4 was copied with another value"),
        ((B, C, D._replace(at=C0)), "source-1 offset 3 was copied to copy-0"),
        ((B, C, D, B._replace(replay_id="other")), "other has copies, and was never finished"),
    ],
)
def test_what_is_wrong_is_found(copies: tuple[Copied, ...], wrong: str) -> None:
    found = judge(*copies)
    assert len(found) == 1, found
    assert wrong in found[0]
