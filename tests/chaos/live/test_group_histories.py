"""The lines of group members are judged: a correct history holds, and each way to spoil it is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, Sent
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.judge.judgement import judge
from tidelog.model.ids import TopicPartition

A, B = TopicPartition("shared", 0), TopicPartition("shared", 1)
RUN = {"version": 1, "seed": 3, "workload": "groups", "nodes": 3, "topics": {"shared": 2}, "schedule": []}
RECORDS = 6


def record(at: TopicPartition, offset: int) -> tuple[int, bytes]:
    return offset, b"gp0:%d:" % (at.partition * RECORDS + offset)


class Group:
    """Two members, a partition each; the first dies, and the second goes on with both in the next generation. Lines
    are kept until it is judged, so that a test can spoil them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.polls: list[Polled] = []
        self.settled: dict[str, list[list[Any]]] = {"g.2": [["shared", 0], ["shared", 1]]}
        self._member("g.1", "one", 1, [A], 1.0)
        self._member("g.2", "two", 1, [B], 1.1)
        self._works("g.1", A, 0, 2, 1.5)
        self.commit("g.1", "one", 1, A, 3, 1.7)
        self._works("g.2", B, 0, 5, 1.5)
        self.commit("g.2", "two", 1, B, 6, 1.8)
        self.line("member", "g.1", what="ended", at=2.0)
        self._member("g.2", "two", 2, [A, B], 3.0)
        self.fetched("g.2", 2, A, 3, 3.1)
        self._works("g.2", A, 3, 5, 3.5)
        self.commit("g.2", "two", 2, A, 6, 3.7)

    def line(self, kind: str, who: str, **fields: Any) -> dict[str, Any]:
        found = {"kind": kind, "group": "g", "who": who, **fields}
        self.lines.append(found)
        return found

    def _member(self, who: str, member: str, generation: int, given: list[TopicPartition], at: float) -> None:
        pairs = [[one.topic, one.partition] for one in given]
        known = {"member": member, "instance": None, "generation": generation, "began": at - 0.1}
        self.line("join", who, **known, ended=at)
        self.line("sync", who, **known, partitions=pairs, ended=at + 0.01)
        self.line("member", who, what="owns", generation=generation, partitions=pairs, at=at + 0.02)

    def _works(self, who: str, at: TopicPartition, first: int, last: int, ended: float) -> None:
        records = [record(at, offset) for offset in range(first, last + 1)]
        self.polls.append(Polled(who, at, records, ended - 0.1, ended))
        where = [at.topic, at.partition]
        self.line("member", who, what="done", partition=where, first=first, last=last, at=ended + 0.05)

    def commit(
        self, who: str, member: str, generation: int, at: TopicPartition, offset: int, began: float, told: str = "NONE"
    ) -> None:
        self.line(
            "commit",
            who,
            member=member,
            instance=None,
            generation=generation,
            server="127.0.0.1:1",
            offsets=[[at.topic, at.partition, offset, told]],
            began=began,
            ended=began + 0.05,
            outcome="ok" if told == "NONE" else "failed",
        )

    def fetched(
        self, who: str, generation: int, at: TopicPartition, offset: int, ended: float, server: int = 1
    ) -> None:
        self.line(
            "fetched",
            who,
            generation=generation,
            server=f"127.0.0.1:{server}",
            offsets=[[at.topic, at.partition, offset]],
            began=ended - 0.05,
            ended=ended,
        )

    def judged(self) -> list[str]:
        history = HistoryFile(self.path)
        history.write("run", **RUN)
        for at in (A, B):
            for offset in range(RECORDS):
                number = at.partition * RECORDS + offset
                history.send(Sent("gp0", number, at, record(at, offset)[1], Outcome.OK, offset, 0.1, 0.2))
        for poll in self.polls:
            history.position(Positioned(poll.consumer, poll.partition))
            history.poll(poll)
        for line in self.lines:
            history.write(**line)
        history.write("settled", group="g", who="", topics=["shared"], members=self.settled)
        for at in (A, B):
            history.final(at, 0, RECORDS, [record(at, offset) for offset in range(RECORDS)])
            copies = [[node, 1, "x"] for node in (1, 2, 3)]
            history.write("replicas", topic=at.topic, partition=at.partition, copies=copies)
        history.close()
        return judge(read_history(self.path)).violations


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path / "history.jsonl")


def test_a_group_as_it_should_be_holds(group: Group) -> None:
    assert group.judged() == []


def _two_owners(group: Group) -> None:
    next(line for line in group.lines if line["kind"] == "sync" and line["who"] == "g.2")["partitions"] = [
        ["shared", 0]
    ]


def _late_commit(group: Group) -> None:
    group.commit("g.1", "one", 1, A, 3, 3.9)


def _stranger(group: Group) -> None:
    group.commit("g.3", "three", 2, A, 6, 3.9)


def _backwards(group: Group) -> None:
    group.fetched("g.2", 2, A, 2, 4.5)


def _asks_backwards(group: Group) -> None:
    group.commit("g.2", "two", 2, A, 5, 4.5)


def _unread(group: Group) -> None:
    group.lines = [line for line in group.lines if (line.get("partition"), line.get("first")) != (["shared", 0], 3)]


def _skips(group: Group) -> None:
    group.polls[1] = group.polls[1]._replace(records=[record(B, 0)])
    group.polls.append(Polled("g.2", B, [record(B, 2)], 3.8, 3.9))


def _takes_what_it_gave_up(group: Group) -> None:
    group.line("member", "g.2", what="gave-up", partitions=[["shared", 1]], at=3.2)
    group.polls.append(Polled("g.2", B, [record(B, 5)], 3.8, 3.9))


def _not_settled(group: Group) -> None:
    group.settled = {"g.2": [["shared", 0]]}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_two_owners, "group g: one owner: shared-0 belongs to two and one in generation 1"),
        (_late_commit, "group g: fenced: the commit of 3 for shared-0 by one in generation 1 was acknowledged"),
        (_stranger, "nobody of that name was let into that generation"),
        (_backwards, "group g: no regress: g.2 of generation 2 was told that 2 is committed for shared-0"),
        (_asks_backwards, "group g: forward only: two asks for 5 of shared-0 in generation 2, after 6"),
        (_unread, "group g: delivered: two asks for 6 of shared-0 in generation 2; nobody has worked off 3"),
        (_skips, "group g: in order: g.2 hands out 2 of shared-1"),
        (_takes_what_it_gave_up, "group g: owned only: g.2 hands out 5 to 5 of shared-1"),
        (_not_settled, "group g: one owner: when all was mended shared-1 belonged to nobody"),
    ],
)
def test_what_is_wrong_with_a_group_is_found(group: Group, spoil: Callable[[Group], None], says: str) -> None:
    spoil(group)
    found = group.judged()
    assert any(says in text for text in found), found


def test_what_was_refused_or_was_asked_of_a_deposed_coordinator_is_no_matter(group: Group) -> None:
    group.commit("g.1", "one", 1, A, 3, 3.9, "ILLEGAL_GENERATION")
    group.fetched("g.2", 2, A, 3, 4.5, server=2)
    assert group.judged() == []


def test_what_a_deposed_coordinator_says_of_older_generations_counts(group: Group) -> None:
    group.fetched("g.2", 2, A, 2, 4.5, server=2)
    assert any("no regress" in text for text in group.judged())
