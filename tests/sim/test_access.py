"""Access control in virtual time: rights come and go while nodes fail, and a node that decides otherwise shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.broker.access.access import AccessControl
from tidelog.chaos.simulated.scenarios.clusters import ACCESS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.watch.rights import may
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.security.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

SCHEDULE = (
    Fault(5.0, "kill", ("controller", 2.0)),
    Fault(9.0, "isolate", ("follower:0", 3.0)),
    Fault(13.0, "stop", ("node:2", 1.0)),
    Fault(18.0, "pause", ("node:3", 2.0)),
    Fault(22.0, "kill-two", ("node:1", "node:3", 1.0)),
)


def test_rights_come_and_go_while_nodes_fail() -> None:
    outcome = ClusterScenario(ACCESS).run(3, SCHEDULE)
    assert outcome.held, outcome.violations
    for event in ("allowed", "denied", "granted", "revoked"):
        assert outcome.events[event] > 10


def test_a_node_that_hears_of_no_change_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessControl, "on_metadata", lambda control, image, delta: ())
    assert shows("expected it to be allowed by", ClusterScenario(ACCESS), 3, ())


def test_a_node_that_is_asked_to_stop_twice_stops_once() -> None:
    """The second one used to live on in a process that was gone, and held up the run for minutes."""
    schedule = (
        Fault(3.0, "kill-in-disk-call", ("node:1", 5, 0.3)),
        Fault(3.05, "stop", ("node:1", 0.3)),
        Fault(3.1, "stop", ("node:1", 0.05)),
    )
    outcome = ClusterScenario(ACCESS).run(1, schedule)
    assert outcome.held, outcome.violations
    assert outcome.virtual_s < 120


def entry(operation: AclOperation, permission: PermissionType, who: str = "User:a") -> AclBinding:
    return AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, who, WILDCARD, operation, permission)


def test_the_judge_of_rights() -> None:
    read, write, describe = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
    allow, deny = PermissionType.ALLOW, PermissionType.DENY

    def asked(operation: AclOperation, *entries: AclBinding, topic: str = "t") -> bool:
        return may(entries, "User:a", operation, ResourceType.TOPIC, topic)

    assert not asked(read)
    assert asked(read, entry(read, allow))
    assert asked(describe, entry(write, allow, EVERYBODY))
    assert not asked(read, entry(describe, allow))
    assert not asked(read, entry(read, allow, "User:b"))
    assert not asked(read, entry(read, allow), entry(AclOperation.ALL, deny, EVERYBODY))
    assert asked(describe, entry(read, allow), entry(read, deny))
    assert not asked(read, entry(read, allow), topic="tt")
