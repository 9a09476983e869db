"""Histories of a group whose coordinator assigns (KIP-848): a good one holds, and what spoils it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.group_judgement import judge_groups

from .test_group_histories import RUN

Lines = list[dict[str, Any]]
A, B = ["shared", 0], ["shared", 1]


def beat(who: str, epoch: int, told: int | None, at: float, **fields: Any) -> dict[str, Any]:
    known = {"kind": "heartbeat", "group": "g", "who": who, "member": who, "owned": None, "given": None}
    return {**known, "epoch": epoch, "told": told, "began": at - 0.05, "ended": at, **fields}


def did(who: str, what: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"kind": "member", "group": "g", "who": who, "what": what, "at": at, **fields}


def commit(who: str, epoch: int, place: list[object], at: float) -> dict[str, Any]:
    return {
        "kind": "commit", "group": "g", "who": who, "member": who, "instance": None, "generation": epoch,
        "server": "s", "offsets": [[*place, 0, "NONE"]], "outcome": "ok", "began": at - 0.05, "ended": at,
    }  # fmt: skip


def lines() -> Lines:
    """One member has both partitions; another one comes, and gets one of them once it is given up."""
    return [
        beat("one", 0, 1, 1.0, owned=[], given=[A, B]),
        did("one", "owns", 1.1, generation=1, partitions=[A, B]),
        beat("one", 1, 1, 1.2, owned=[A, B]),
        commit("one", 1, B, 1.3),
        beat("two", 0, 2, 2.0, owned=[], given=[]),
        beat("one", 1, 1, 2.1, given=[A]),
        did("one", "gave-up", 2.2, partitions=[B]),
        beat("one", 1, 2, 2.3, owned=[A]),
        beat("two", 2, 2, 2.5, given=[B]),
        did("two", "owns", 2.6, generation=2, partitions=[B]),
        beat("two", 2, 2, 2.7, owned=[B]),
        commit("two", 2, B, 2.8),
        {"kind": "settled", "group": "g", "who": "", "topics": ["shared"], "members": {"one": [A], "two": [B]}},
    ]


def judged(found: Lines) -> list[str]:
    recorded = Recorded(RUN)
    recorded.groups += found
    return judge_groups(recorded)


def test_a_history_as_it_should_be_holds() -> None:
    assert judged(lines()) == []


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("one owner", lambda found: found[8].update(began=2.13, ended=2.15)),
        ("owned only", lambda found: found.pop(6)),
        ("fenced", lambda found: found.append(commit("one", 2, B, 2.9))),
    ],
)
def test_what_spoils_it_is_found(rule: str, spoil: Callable[[Lines], object]) -> None:
    found = lines()
    spoil(found)
    assert any(f"{rule}: " in text for text in judged(found)), judged(found)


def mixed(*more: dict[str, Any]) -> Lines:
    """The same group, with a member of the classic protocol."""
    joined = {"kind": "join", "group": "g", "who": "three", "member": "three", "instance": None}
    return [*lines(), {**joined, "generation": 3, "began": 3.0, "ended": 3.1}, *more]


def commits(offset: int, at: float) -> dict[str, Any]:
    return commit("two", 2, B, at) | {"offsets": [[*B, offset, "NONE"]]}


def test_a_history_of_both_protocols_is_judged_by_what_its_members_see() -> None:
    done = did("", "done", 2.75, partition=B, first=0, last=4)
    assert judged(mixed(done, commits(3, 2.9), commits(5, 3.2))) == []
    assert any("delivered: " in text for text in judged(mixed(commits(5, 2.9))))
    assert any("forward only: " in text for text in judged(mixed(done, commits(5, 2.9), commits(3, 3.2))))
