"""Runs of random faults in which something is made wrong on purpose: each wrong is found and named."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.chaos import random_faults
from tidelog.chaos.checkers.history import NO_OFFSET, History, Outcome, Sent
from tidelog.chaos.random_fault_clients import Sending
from tidelog.chaos.random_fault_metadata import MetadataLook
from tidelog.chaos.random_faults import Run
from tidelog.model.ids import LeaderEpoch, NodeId, TopicPartition

AT = TopicPartition("a", 0)


async def at_work(it: Run) -> None:
    """Until every producer was heard and every consumer has read."""
    heard = lambda: all(sender.acknowledged > 20 for sender in it.senders)  # noqa: E731
    read = lambda: all(any(reader.positions.values()) for reader in it.readers)  # noqa: E731
    await it.cluster.wait_for(lambda: heard() and read(), "clients at work")


def kinds(violations: list[str]) -> set[str]:
    return {text.partition(":")[0] for text in violations}


class Forgetful:
    """A consumer that loses one record from the midst of what a poll brought from a partition."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.forgot = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    async def poll(self, timeout_s: float) -> list[Any]:
        records = list(await self._consumer.poll(timeout_s))
        for place in range(1, len(records) - 1):
            here = {(r.topic, r.partition) for r in records[place - 1 : place + 2]}
            if not self.forgot and len(here) == 1:
                self.forgot = True
                return records[:place] + records[place + 1 :]
        return records


class LiesToldToTheHistory:
    """Sends with a producer of its own, and tells the history something else than it was told."""

    def __init__(self, it: Run) -> None:
        self.it = it

    async def send(self, *values: bytes) -> list[int]:
        async with self.it.cluster.producer() as producer:
            futures = [await producer.send(AT.topic, value, partition=AT.partition) for value in values]
            return [(await future).offset for future in futures]

    def says(self, value: bytes, outcome: Outcome, offset: int = NO_OFFSET, number: int = 0) -> None:
        now = asyncio.get_running_loop().time()
        name = value.partition(b":")[0].decode()
        self.it.history.sends.append(Sent(name, number, AT, value, outcome, offset, 0.0, now))

    async def tell(self, it: Run) -> None:
        await at_work(it)
        self.says(b"ghost:0", Outcome.OK, 10**6)
        self.says(b"twice:0", Outcome.OK, (await self.send(b"twice:0", b"twice:0"))[0])
        await self.send(b"nobody:0")
        (offset,) = await self.send(b"refused:0")
        self.says(b"refused:0", Outcome.FAILED)
        first, second = await self.send(b"turned:0", b"turned:1")
        self.says(b"turned:0", Outcome.OK, first, number=1)
        self.says(b"turned:1", Outcome.OK, second, number=0)
        (offset,) = await self.send(b"moved:0")
        self.says(b"moved:0", Outcome.OK, offset - 1)
        forgetful = Forgetful(it.readers[0].consumer)
        it.readers[0].consumer = forgetful  # type: ignore[assignment]
        await it.cluster.wait_for(lambda: forgetful.forgot, "a record forgotten")


async def test_a_run_in_which_nothing_happens_holds_and_has_read_everything() -> None:
    report = await Run(1).run(at_work)
    assert report.violations == []
    assert report.faults == 0
    assert report.acknowledged == report.sent == report.read > 60


async def test_every_lie_of_a_client_is_found() -> None:
    it = Run(1)
    report = await it.run(LiesToldToTheHistory(it).tell)
    found = {
        word: kind.partition(":")[0]
        for kind in report.violations
        for word in ("ghost:0", "twice:0", "nobody:0", "refused:0", "turned:0", "c0 ")
        if word in kind and "history of" not in kind
    }
    assert found == {
        "ghost:0": "unseen",
        "twice:0": "duplicate",
        "nobody:0": "phantom",
        "refused:0": "G1a",
        "turned:0": "nonmonotonic-send",
        "c0 ": "int-poll-skip",
    }
    assert {"misplaced", "inconsistent-offsets"} <= kinds(report.violations)
    assert any(text.startswith(f"history of {AT}:") for text in report.violations)


def log_files(it: Run, node: NodeId) -> list[Path]:
    """The segments of a node, the longest first."""
    found = it.cluster.node_directory(node).parent.glob("data*/*-*/*.log")
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def flip_a_bit(log: Path) -> None:
    """Change a byte of the first batch of a log."""
    with min(log.glob("*.log")).open("rb+") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))


async def damage(it: Run) -> None:
    await at_work(it)
    # What a process left behind is shorter when the next one starts.
    node = it.cluster.node_ids[0]
    await it.hand._end(node)
    with log_files(it, node)[0].open("rb+") as file:
        file.truncate(file.seek(0, 2) - 1)
    await it.hand._start(node)
    await it.cluster.wait_for(it.watch.isr_whole, "every ISR whole")
    # A follower has other bytes than its leader.
    follower, key, replica = next(
        found for found in it.watch.replicas() if found[2].partition.leading is None and found[0] != node
    )
    flip_a_bit(Path(replica.partition.log.directory))
    # It cut what was committed, and a fetch stays behind on it.
    replica.partition.counts.truncations_below_high_watermark += 1
    broker = it.cluster.nodes[follower].broker
    assert broker is not None
    broker.replicas.consuming.held_bytes += 1
    # Somebody is told that a record is there which nobody has.
    it.watch.acknowledged(TopicPartition(replica.partition.state.topic, key.partition), 10**6)


async def test_every_damage_to_the_state_of_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "WAITS_S", 0.3)
    report = await Run(2).run(damage)
    for text in (
        "byte-identical: ",
        "below its high watermark",
        "left after the clients: ",
        "offset 1000000 was acknowledged; nodes [1, 2, 3] do not have it",
        "node 1 died with ",
    ):
        assert any(text in found for found in report.violations), f"{text!r} in {report.violations}"


async def test_a_cluster_that_does_not_get_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "SETTLE_S", 0.5)

    async def silence(it: Run) -> None:
        await at_work(it)
        for sender in it.senders:
            sender.stop = True
        await it.cluster.wait_for(lambda: not any(sender.undecided for sender in it.senders), "all outcomes")

    report = await Run(3).run(silence)
    assert [text.partition("\n")[0] for text in report.violations] == [
        "progress: expected within 0.5 s: progress of every producer"
    ]


async def test_metadata_that_differ_or_go_back_are_found() -> None:
    told: list[str] = []

    async def compare(it: Run) -> None:
        await at_work(it)
        look = MetadataLook(told.extend, lambda key, epoch, leader: [], lambda key: None)
        node_id, node = next(iter(it.cluster.nodes.items()))
        look.look(node_id, node)
        assert told == []
        image = node.view.image
        topic = image.topic("a")
        assert topic is not None
        other = dataclasses.replace(topic.partitions[0], leader_epoch=LeaderEpoch(9))
        forged = SimpleNamespace(
            **{name: getattr(image, name) for name in ("offset", "epoch", "brokers", "next_producer_id")},
            topics={topic.topic_id: SimpleNamespace(name="a", partitions={0: other})},
        )
        look.look(NodeId(7), as_node(forged))
        forged.offset -= 1
        look.look(NodeId(7), as_node(SimpleNamespace(**vars(forged))))

    report = await Run(4).run(compare)
    assert report.violations == []
    assert any("have different images" in text for text in told)
    assert any("went back" in text for text in told)


def as_node(image: Any) -> Any:
    return SimpleNamespace(controller=None, view=SimpleNamespace(image=image))


def a_sender(violated: list[str], counts: Mapping[str, int] = {"a": 1}) -> tuple[Sending, History, list[Any]]:
    """A producer's record of what it was told, and what it gives the producer to call."""
    calls: list[Any] = []

    async def send(topic: str, value: bytes, *, partition: int, on_delivery: Any) -> None:
        calls.append(on_delivery)

    history = History()
    rng = random.Random(1)
    producer: Any = SimpleNamespace(send=send)
    sending = Sending("p", producer, counts, history, rng, lambda at, offset: None, violated.append)
    return sending, history, calls


async def test_a_delivery_that_fails_is_unknown_and_a_second_outcome_is_found() -> None:
    violated: list[str] = []
    sending, history, calls = a_sender(violated)
    for _ in range(3):
        await sending._send(AT)
    calls[0](SimpleNamespace(topic="a", partition=0, offset=4), None)
    calls[1](None, TimeoutError("late"))
    assert [sent.outcome for sent in history.sends] == [Outcome.OK, Outcome.UNKNOWN]
    assert (sending.acknowledged, sending.undecided, violated) == (1, 1, [])
    calls[1](SimpleNamespace(topic="a", partition=0, offset=5), None)
    calls[2](SimpleNamespace(topic="a", partition=1, offset=6), None)
    assert "p:1 had its outcome already" in violated[0]
    assert "p:2 was sent to a-0 and acknowledged at " in violated[1]
    sending.leave()
    assert sending.undecided == 0
