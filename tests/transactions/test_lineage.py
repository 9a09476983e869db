"""What a node remembers of what transactional ids read and write, and that it is bounded."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.transactions.lineage import Lineage

from .conftest import Desk


def test_what_is_seen_again_is_one_edge() -> None:
    lineage = Lineage()
    lineage.read("x", "g", "c", ["a", "b", "a"], 5)
    lineage.read("x", "g", "d", ["a"], 7)
    lineage.ends("x", "e")
    lineage.wrote("x", ["a", "__consumer_offsets"], 8)
    assert {tuple(getattr(edge, name) for name in edge.__slots__) for edge in lineage.edges()} == {
        ("x", "a", True, "g", "d", 2, 5, 7),
        ("x", "b", True, "g", "c", 1, 5, 5),
        ("x", "a", False, "", "e", 1, 8, 8),
    }


def test_what_has_not_been_seen_for_longest_is_forgotten() -> None:
    lineage = Lineage(bytes_max=10_000)
    lineage.wrote("always", ["t"], 0)
    for number in range(1_000):
        lineage.wrote(f"id-{number:04d}", ["t"], number)
        lineage.wrote("always", ["t"], number)
    edges = lineage.edges()
    assert 20 < len(edges) < 40
    assert lineage.forgotten == 1_001 - len(edges)
    assert {edge.transactional_id for edge in edges} == {
        "always", *(f"id-{number:04d}" for number in range(1_001 - len(edges), 1_000)),
    }  # fmt: skip
    lineage.wrote("x" * 30_000, ["t"], 0)
    assert lineage.edges() == ()


def test_clients_whose_transactions_never_commit_are_forgotten() -> None:
    lineage = Lineage()
    for number in range(50_000):
        lineage.ends(f"{number}", "c" * 10)
    assert len(lineage._clients) <= 10_000


def test_transactions_that_commit_are_noted_also_those_of_sinks(desk: Desk) -> None:
    for name, commits in (("good", True), ("bad", False)):
        identity = desk.ongoing(TopicPartition(name, 0), TopicPartition(name, 1), transactional_id=name)
        assert desk.error(desk.end(identity, commits, transactional_id=name)) is ErrorCode.NONE
    attempts = {name: desk.write_attempt(0, "job", name, TopicPartition("sunk", 0)) for name in ("1", "2")}
    desk.commit_batch(0, "job", attempts)
    edges = desk.shard.state.lineage.edges()
    assert [(edge.transactional_id, edge.topic, edge.reads, edge.count) for edge in edges] == [
        ("good", "good", False, 1),
        ("__sink/s", "sunk", False, 2),
    ]
