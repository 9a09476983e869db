"""Whether a cluster is well enough for a drill, and how a drill reaches nodes that are not its own processes."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.chaos.drill.drills import DRILLS
from tidelog.chaos.drill.objectives import LEADERLESS_S, WORDS, Limits
from tidelog.chaos.drill.reach import CommandReach, HandReach, checked_template, listens
from tidelog.chaos.drill.report import Voice
from tidelog.chaos.drill.target import Found, ailments, check_racks, check_size
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import PartitionState as Held
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Address

WELL = Found(
    "id",
    {number: Address("127.0.0.1", 1) for number in (1, 2, 3)},
    (1, 2, 3),
    controller=2,
    partitions={TopicPartition("orders", 0): Held(1, (1, 2, 3), (1, 2, 3))},
)


# --- How it stands ----------------------------------------------------------------------------------------------------


def test_a_cluster_that_is_well() -> None:
    assert ailments(WELL) == []
    check_size(WELL)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(WELL, controller=-1), "no controller is active"),
        (replace(WELL, fenced=(3,)), "1 of 3 brokers fenced: broker 3; start the broker"),
        (replace(WELL, leaving=(2,)), "broker 2 shutting down; wait, then start it again"),
        (
            replace(WELL, partitions={TopicPartition("orders", 0): Held(-1, (1,), (1, 2, 3))}),
            "1 partition without a leader: orders-0; start the brokers",
        ),
        (
            replace(WELL, partitions={TopicPartition("orders", 7): Held(1, (1, 2), (1, 2, 3))}),
            "1 partition with a replica out of sync: orders-7; start the broker",
        ),
        (
            replace(WELL, partitions={TopicPartition("tidelog-drill-x-1", 0): Held(1, (1,), (1,))}),
            "`tidelog topics delete tidelog-drill-x-1`",
        ),
    ],
)
def test_what_ails_it_comes_with_what_to_do(found: Found, words: str) -> None:
    (said,) = ailments(found)
    with pytest.raises(CommandFailed, match=words):
        raise CommandFailed(said)


def test_a_cluster_of_which_none_can_be_lost() -> None:
    with pytest.raises(CommandFailed, match="expected 3 brokers or more, of which one can be lost, found 2"):
        check_size(replace(WELL, brokers={1: Address("127.0.0.1", 1), 2: Address("127.0.0.1", 2)}))
    with pytest.raises(CommandFailed, match="expected 3 controllers or more"):
        check_size(replace(WELL, voters=(1,)))


def in_racks(racks: str, voters: tuple[int, ...] = (1, 2, 3), **replicas: tuple[int, ...]) -> Found:
    """Brokers 1, 2 … in the racks of these letters, and a partition 0 of each topic."""
    return Found(
        "id",
        {number: Address("127.0.0.1", number) for number in range(1, len(racks) + 1)},
        voters,
        controller=1,
        partitions={TopicPartition(topic, 0): Held(on[0], on, on) for topic, on in replicas.items()},
        racks={number: rack for number, rack in enumerate(racks, 1) if rack != "-"},
    )


def test_racks_that_can_be_lost() -> None:
    check_racks(in_racks("abc", orders=(1, 2, 3)))
    check_racks(in_racks("abcab", voters=(1, 2, 3, 4, 5), orders=(1, 4, 2)))
    check_racks(in_racks("abc", voters=(7, 8, 9)))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (in_racks("---"), r"expected a rack of each broker \(broker.rack\), found none of 1, 2, 3"),
        (in_racks("ab-"), "found none of 3"),
        (in_racks("aabc"), r"rack a has 2 of 3 controllers \(nodes 1, 2\): without a majority no metadata can change"),
        (in_racks("abcab", voters=(1, 2, 3, 4)), "rack a has 2 of 4 controllers"),
        (in_racks("abcab", orders=(4, 1), u=(2, 3)), r"rack a has every replica of 1 of 2 partitions \(orders-0\)"),
        (in_racks("abab", voters=(5, 6, 7)), r"there are only 2 racks \(a, b\): of three replicas, two are in one"),
    ],
)
def test_racks_of_which_one_cannot_be_lost(found: Found, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        check_racks(found)


@pytest.mark.parametrize("name", DRILLS)
def test_every_drill_says_what_it_does_and_what_is_expected(name: str) -> None:
    drill = DRILLS[name]
    assert drill.steps(WELL, 5.0)
    objectives = drill.objectives(WELL, Limits(1.5, 0.5, 7.0))
    assert {"lost", "duplicated", "errors", "unhealthy", "whole_s"} <= {one.measure for one in objectives}
    assert {one.measure for one in objectives} <= WORDS.keys()
    assert {one.limit for one in objectives} <= {0, 1.5, 0.5, 7.0, LEADERLESS_S}


def test_a_lost_quorum_stops_records_only_where_controllers_are_brokers_too() -> None:
    apart = replace(WELL, voters=(4, 5, 6))
    measures = [[one.measure for one in DRILLS["quorum-loss"].objectives(each, Limits())] for each in (WELL, apart)]
    assert ["silence_s" in each for each in measures] == [False, True]


# --- By commands and by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template", ["", "stop", "stop {}", "stop {nod}", "stop {node} {more}", "stop {node", "'{node}"]
)
def test_a_template_that_cannot_be_filled_in(template: str) -> None:
    with pytest.raises(CommandFailed, match=r"--stop-command: expected a command with \{node\}, \{signal\}, found"):
        checked_template("--stop-command", template, {"node", "signal"})


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(CommandFailed, match="expected a program, found 'nonesuch-program'"):
        checked_template("--start-command", "nonesuch-program {node}", {"node"})


@pytest.fixture
def nodes() -> Iterator[dict[int, socket.socket]]:
    """Three listeners in place of brokers; closing one stops that broker."""
    made = {number: socket.create_server(("127.0.0.1", 0)) for number in (1, 2, 3)}
    yield made
    for each in made.values():
        each.close()


def _addresses(nodes: dict[int, socket.socket]) -> dict[int, Address]:
    return {number: Address("127.0.0.1", each.getsockname()[1]) for number, each in nodes.items()}


def test_by_hand_a_step_is_over_when_it_is_seen(nodes: dict[int, socket.socket]) -> None:
    said: list[str] = []
    asked = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        asked.set()

    reach = HandReach(_addresses(nodes), say)

    def operator() -> None:
        asked.wait(10)
        nodes[2].close()

    hand = threading.Thread(target=operator)
    hand.start()
    before = time.monotonic()
    began = reach.kill([2])
    hand.join()
    assert before <= began <= time.monotonic()
    assert said == [">>> kill node 2 now, at once and without warning (kill -9)"]
    assert not reach.running(2)
    with pytest.raises(CommandFailed, match="left to do by hand: start node 2"):
        reach.restore()


def test_by_hand_a_node_without_a_listener_for_clients_wants_enter(nodes: dict[int, socket.socket]) -> None:
    pressed: list[str] = []
    reach = HandReach(_addresses(nodes), pressed.append, lambda: pressed.append("enter"))
    reach.kill([9])
    assert pressed == [">>> kill node 9 now, at once and without warning (kill -9)", "enter"]
    assert not reach.running(9)


def test_a_command_that_fails_tells_its_last_words(nodes: dict[int, socket.socket]) -> None:
    program = f"{sys.executable} -c 'import sys; sys.exit(\"no such node {{node}}\")'"
    said: list[str] = []
    reach = CommandReach(_addresses(nodes), program, program, say=said.append)
    with pytest.raises(CommandFailed, match="ended with exit code 1: no such node 3"):
        reach.kill([3])
    assert len(said) == 1
    reach.restore()  # it listens, so there is nothing to start
    assert len(said) == 1
    assert not reach.can_fill


def test_a_command_is_over_when_its_node_is_gone(tmp_path: Path) -> None:
    """And the node counts as gone from when it was seen, not from the end of the command that did it."""
    script = tmp_path / "node.py"
    script.write_text(
        "import os, signal, socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "open(sys.argv[2], 'w').write(str(os.getpid()))\n"
        "signal.pause()\n"
    )
    stop = tmp_path / "stop.py"
    stop.write_text(
        "import os, signal, sys, time\n"
        "os.kill(int(open(sys.argv[1]).read()), getattr(signal, 'SIG' + sys.argv[2]))\n"
        "time.sleep(0.7)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start = tmp_path / "start.py"
    start.write_text(
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, {str(script)!r}, '{port}', {str(tmp_path / 'pid')!r}])\n"
    )
    reach = CommandReach(
        {7: Address("127.0.0.1", port)},
        f"{sys.executable} {stop} {tmp_path / 'pid'} {{signal}} {{node}}",
        f"{sys.executable} {start} {{node}}",
        say=lambda line: None,
    )
    reach.start([7])
    reach.wait_serving([7])
    assert listens(Address("127.0.0.1", port))
    gone = reach.kill([7])
    assert time.monotonic() - gone > 0.5
    assert not reach.running(7)
    reach.restore()
    assert reach.running(7)
    reach.stop(7)
    assert not reach.running(7)


def test_what_nobody_hears_any_more_raises_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drill ends with it; undoing it must not."""

    def broken(line: str, err: bool) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", broken)
    say: Callable[[str], None] = Voice(err=False)
    with pytest.raises(BrokenPipeError):
        say("one")
    say("two")
