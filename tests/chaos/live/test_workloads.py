"""Workloads: which there are, several at once, a run of them; what is made of topics is judged; clients of one process
that die and stand still."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, Sent
from tidelog.chaos.laboratory.command import EXIT_HELD, EXIT_REFUSED, main
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.history.recording import Budget
from tidelog.chaos.laboratory.judge.judgement import judge
from tidelog.chaos.laboratory.links.client_network import ClientNetwork
from tidelog.chaos.laboratory.workloads.client_world import LaboratoryWorld, Surroundings, stopped
from tidelog.chaos.laboratory.workloads.workload import derived_value, made_of
from tidelog.chaos.laboratory.workloads.workloads import WORKLOADS, workloads_named
from tidelog.chaos.workloads.incarnation import Incarnation, Roster
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.api import MetadataRequest, MetadataResponse
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, CallContext, ConnectionLost, Service

pytestmark = pytest.mark.timeout(600)  # the first test of a machine builds the server

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


def test_workloads_are_named_once_each() -> None:
    assert workloads_named("append,transactions,append") == ["append", "transactions"]
    assert set(WORKLOADS) == {"append", "transactions", "groups", "transform", "keyed", "sinks", "kafka", "spark"}


@pytest.mark.parametrize(("text", "found"), [("apend", "apend"), (",", "nothing"), ("append,x,y", "x, y")])
def test_a_workload_that_is_none_is_refused(text: str, found: str) -> None:
    with pytest.raises(CommandFailed, match=f"expected one or more of append, .*, found {found}"):
        workloads_named(text)
    assert main(["run", "--workload", text]) == EXIT_REFUSED


def test_no_two_workloads_share_topics_or_names_of_clients(tmp_path: Path) -> None:
    async def names() -> tuple[list[str], list[str]]:
        history = HistoryFile(tmp_path / "history.jsonl")
        surroundings = Surroundings("127.0.0.1:1", "127.0.0.1:1", tmp_path, history, 1, 100.0, Budget(1))
        works = [make(surroundings) for make in WORKLOADS.values()]
        history.abandon()
        return [topic for work in works for topic in work.topics], [name for work in works for name in work.heard()]

    for found in asyncio.run(names()):
        assert [name for name, count in Counter(found).items() if count > 1] == []


def test_a_run_of_several_workloads_holds(toxiproxy: Path, tmp_path: Path) -> None:
    """Groups, copiers, mirrors, sinks and Kafka's clients at once; a history says what each of them did."""
    plan = tmp_path / "plan.jsonl"
    plan.write_text('{"kind":"run","version":1,"schedule":[]}\n')
    asked = ["run", "--workload", "transform,groups,sinks,kafka", "--seconds", "5", "--nodes", "1", "--rate", "90"]
    asked += ["--replay", str(plan)]
    assert main([*asked, "--dir", str(tmp_path / "runs")]) == EXIT_HELD
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    recorded = read_history(path)
    assert recorded.run["workload"] == "transform,groups,sinks,kafka"
    assert recorded.run["derived"] == {"copies": "inputs", "mirrors": "inputs"}
    kinds = Counter(line["kind"] for line in recorded.groups)
    assert all(kinds[kind] for kind in ("join", "sync", "commit", "fetched", "member", "settled")), kinds
    assert {line["group"] for line in recorded.committed} == {"copiers", "mirrors"}
    written = Counter(at.topic for at, records in recorded.final.items() for _ in records)
    assert written["copies"] == written["mirrors"] == written["inputs"] > 50
    assert {sent.producer.partition(".")[0] for sent in recorded.history.sends} >= {"kp0", "kp1", "kw0", "ip0", "gp0"}
    assert len(recorded.batches) > 1
    assert recorded.sinks is not None
    assert recorded.sinks["last"].keys() == recorded.sinks["noted"].keys() == {"sink0", "sink1"}
    assert written["batches"]
    # A value that is there twice, and one that is gone, are found in what was just held for whole.
    at = max(recorded.final, key=lambda at: (at.topic == "mirrors", len(recorded.final[at])))
    records = recorded.final[at]
    recorded.final[at] = [*records[1:], (records[-1][0] + 1, records[-1][1])]
    found = judge(recorded).violations
    assert any("mirrors: exactly once: 0 outputs" in text for text in found)
    assert any("mirrors: exactly once: 2 outputs" in text for text in found)


class Copied:
    """Three inputs, each with its output; a group that has read all. Each test spoils it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outputs = [(number, derived_value(b"ip0:%d:" % number, f"x.{number}")) for number in range(3)]
        self.shown = list(self.outputs)
        self.committed = 3

    def judged(self) -> list[str]:
        history = HistoryFile(self.path)
        derived = {"out": "in"}
        history.write(
            "run", version=1, seed=1, workload="x", nodes=1, topics={"in": 1, "out": 1}, derived=derived, schedule=[]
        )
        inputs = [(number, b"ip0:%d:" % number) for number in range(3)]
        for number, value in inputs:
            history.send(Sent("ip0", number, IN, value, Outcome.OK, number, 0.1, 0.2))
        history.position(Positioned("ir0", OUT, 0))
        history.poll(Polled("ir0", OUT, self.shown, 0.5, 0.6, read_committed=True))
        history.write("committed", group="copiers", offsets=[["in", 0, self.committed]])
        history.final(IN, 0, 3, inputs)
        history.final(OUT, 0, 4, self.outputs)
        history.close()
        return judge(read_history(self.path)).violations


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path / "history.jsonl")


def test_what_is_made_of_a_topic_holds_where_each_input_has_one_output(copied: Copied) -> None:
    assert copied.judged() == []


def test_an_input_without_output_is_found(copied: Copied) -> None:
    del copied.outputs[1], copied.shown[1]
    assert copied.judged() == ["out: exactly once: 0 outputs for b'ip0:1:', which is there 1 times"]


def test_an_input_with_two_outputs_is_found(copied: Copied) -> None:
    copied.outputs.append((3, derived_value(b"ip0:1:", "y")))
    copied.shown.append(copied.outputs[-1])
    assert copied.judged() == ["out: exactly once: 2 outputs for b'ip0:1:', which is there 1 times"]


def test_an_output_of_nothing_is_found(copied: Copied) -> None:
    copied.outputs.append((3, derived_value(b"ip0:9:", "y")))
    copied.shown.append(copied.outputs[-1])
    assert copied.judged() == ["out: exactly once: 1 outputs for b'ip0:9:', which is there 0 times"]


def test_a_reader_of_what_is_made_that_skips_is_found(copied: Copied) -> None:
    del copied.shown[1]
    assert any("only what counts: ir0 was shown" in text for text in copied.judged())


def test_offsets_that_do_not_agree_are_found(copied: Copied) -> None:
    copied.committed = 2
    assert copied.judged() == ["offsets: group copiers has 2 committed for in-0, it ends at 3"]


def test_what_a_value_was_made_of() -> None:
    assert made_of(derived_value(b"a|b", "c")) == b"a|b"
    assert made_of(b"copied as it is") == b"copied as it is"


async def test_a_client_that_is_gone_asks_nothing_and_one_that_stands_still_waits() -> None:
    heard: list[object] = []
    network = ClientNetwork(GrpcNetwork(), lambda request: lambda answer, server: heard.append(answer))
    connection = network.connect(Address("127.0.0.1", 1))
    network.hold()
    asking = asyncio.ensure_future(connection.call(MetadataRequest(()), timeout_s=0.1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.3)  # nothing has been asked: nobody refuses it
    network.die()
    with pytest.raises(ConnectionLost, match="gone"):
        await asking
    assert heard == [None]
    await connection.close()


async def test_what_a_client_was_about_to_ask_goes_out_when_it_goes_on_though_it_waits_no_more() -> None:
    heard: list[object] = []
    network = ClientNetwork(GrpcNetwork(), lambda request: lambda answer, server: heard.append(answer))
    connection = network.connect(Address("127.0.0.1", 1))
    network.hold()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.call(MetadataRequest(()), timeout_s=0.5), 0.1)
    assert heard == []
    network.resume()
    async with asyncio.timeout(100):
        while not heard:
            await asyncio.sleep(0.01)
    assert heard == [None]  # nobody is there
    await connection.close()


async def test_an_answer_is_heard_when_it_is_there_though_the_client_that_asked_stands_still() -> None:
    heard: list[object] = []
    network = ClientNetwork(GrpcNetwork(), lambda request: lambda answer, server: heard.append(answer))

    async def answered(request: MetadataRequest, context: CallContext) -> MetadataResponse:
        network.hold()
        return MetadataResponse(cluster_id="here", controller_id=NodeId(1), brokers=(), topics=())

    server = await GrpcNetwork().serve("CLIENT", Address("127.0.0.1", 0), Service({MetadataRequest: answered}, {}))
    connection = network.connect(server.address)
    asking = asyncio.ensure_future(connection.call(MetadataRequest(()), timeout_s=20.0))
    await _until(lambda: bool(heard))
    assert not asking.done()
    network.resume()
    assert heard == [await asking]
    await connection.close()
    await server.close(0.0)


class Idle(Incarnation):
    """Waits until it is told to stop; the first one of a slot ends by itself."""

    async def _run(self) -> None:
        while not (self.stopping or self.name.endswith(".1")):
            await asyncio.sleep(0.01)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_incarnation_follows_the_other_until_the_roster_stops(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "history.jsonl")
    world = LaboratoryWorld(Surroundings("127.0.0.1:1", "", tmp_path, history, 1, 1.0, Budget(1)), "test")
    roster = Roster(world, random.Random(1), ["x"], lambda slot, name: Idle(name, world))
    roster.begin()
    await _until(lambda: len(roster.everyone) == 2)
    _, killed = roster.everyone
    assert roster.kill(0, 0.1)
    await _until(lambda: len(roster.everyone) == 3)
    assert killed.task.cancelled()
    roster.forget()
    assert [client.name for client in roster.everyone] == ["x.3"]
    await _until(lambda: [process.name for process in world._processes] == ["x.3"])
    assert roster.pause(0, 600.0)
    assert not roster.kill(0, 0.1)  # it stands still
    world.calm()
    assert roster.second(0, 0.0)
    assert [client.name for client in roster.everyone if client.at_work] == ["x.3", "x.4"]
    await stopped(world, roster, 20.0)
    await world.close()
    history.close()
    assert roster.count == 4
    assert "wrong" not in history.path.read_text()


async def test_what_ends_a_client_of_the_laboratory_is_written_down(tmp_path: Path) -> None:
    class Broken(Incarnation):
        async def _run(self) -> None:
            raise ValueError("no such thing")

    history = HistoryFile(tmp_path / "history.jsonl")
    world = LaboratoryWorld(Surroundings("127.0.0.1:1", "", tmp_path, history, 1, 1.0, Budget(1)), "test")
    client = Broken("x", world)
    await _until(client.task.done)
    await world.close()
    history.close()
    assert '"text":"x ended with ValueError: no such thing"' in history.path.read_text()
