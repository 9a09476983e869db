"""Nodes of release 0.1 and present ones in one simulated cluster: upgraded, rolled back, finalised under faults."""

from __future__ import annotations

from tidelog.chaos.checkers.metadata import above_level
from tidelog.chaos.simulated.former.release import PACKAGE, module
from tidelog.chaos.simulated.scenarios.versions import VERSIONS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.world.scenario import Fault, Outcome

UPGRADES = tuple(Fault(2.0 + number, "upgrade", (0, number % 2 == 1)) for number in range(4))


def run(*schedule: Fault) -> Outcome:
    return ClusterScenario(VERSIONS).run(3, schedule)


def test_release_0_1_runs_beside_the_present_one() -> None:
    old, new = module("model.features").SUPPORTED_FEATURES, VERSIONS.kinds
    assert old == {"metadata.version": (1, 1)}
    assert new
    assert module("broker.node").Node.__module__ == f"{PACKAGE}.broker.node"
    assert module("proto.v1.api_pb2").CreateTopicsRequest.DESCRIPTOR.file.name == "tidelog/proto/v1/api.proto"


def test_a_cluster_is_upgraded_and_goes_back_while_nodes_die() -> None:
    outcome = run(
        Fault(1.5, "make-topic", (3,)),
        *UPGRADES[:2],
        Fault(3.5, "make-topic", (2,)),
        Fault(3.6, "ask-for-more", (1, 0)),
        Fault(3.7, "finalise"),
        Fault(4.0, "roll-back", (0, False)),
        *UPGRADES[2:],
        Fault(7.0, "kill", ("controller", 1.0)),
        Fault(9.0, "ask-for-more", (2, 1)),
        Fault(10.0, "roll-back", (3, True)),
        Fault(12.0, "isolate", ("leader:0", 2.0)),
        Fault(14.0, "make-topic", (3,)),
    )
    assert outcome.held, outcome.violations
    found = outcome.events
    counted = found["upgraded"], found["rolled-back"], found["finalise-refused"], found["node-removed"]
    assert counted == (3, 1, 1, 1), found  # the operator takes out a node of the former release that is in the way
    assert found["gate-closed"] >= 2
    assert found["topic-made"] == 3
    assert not found["gate-open"]


def test_nobody_goes_back_once_it_is_finalised() -> None:
    outcome = run(
        *UPGRADES,
        Fault(12.0, "finalise"),
        *(Fault(18.0, "ask-for-more", (node, 0)) for node in (1, 2, 3, 4)),
        Fault(19.0, "roll-back", (0, True)),
        Fault(25.0, "roll-back", (3, False)),
    )
    assert outcome.held, outcome.violations
    assert (outcome.events["finalised"], outcome.events["came-too-late"], outcome.events["gate-open"]) == (1, 2, 7), (
        "three replicas, four users"
    )


def test_the_judge_of_levels() -> None:
    assert above_level(7, 1, 1) == []
    assert above_level(7, 1, 2) == []
    assert above_level(0, 2, None) == [], "what a new cluster begins with"
    assert above_level(7, 2, 1) == ["level in use: at offset 7 the log has had a record of level 2, in use is 1"]
