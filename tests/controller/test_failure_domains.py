"""Failure domains: no two replicas of a partition on a machine, with racks and without."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata_quorum.controller.placement import UsableBroker, place_replicas
from tidelog.model.errors import Refusal
from tidelog.model.ids import NodeId
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.calls.failure_domains import failure_domains

from .conftest import Bench


@dataclass(frozen=True)
class Broker:
    rack: str | None
    listeners: tuple[Endpoint, ...]


def broker(host: str, rack: str | None = None) -> Broker:
    return Broker(rack, (Endpoint("CLIENT", host, 9092),))


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ({}, {}),
        ({1: broker("a"), 2: broker("b")}, {1: None, 2: None}),
        ({1: broker("a"), 1001: broker("a")}, {1: None, 1001: None}),
        ({1: broker("a"), 1001: broker("a"), 2: broker("b")}, {1: "host a", 1001: "host a", 2: "host b"}),
        ({1: broker("a", "r"), 1001: broker("a", "r"), 2: broker("b")}, {1: "r", 1001: "r", 2: None}),
        ({1: Broker(None, ()), 2: broker("b"), 3: broker("b")}, {1: "host ", 2: "host b", 3: "host b"}),
    ],
)
def test_a_rack_comes_first_then_a_shared_host(brokers: dict[int, Broker], expected: dict[int, str | None]) -> None:
    assert failure_domains(brokers) == expected


@given(
    machines=st.integers(2, 6),
    workers=st.integers(1, 8),
    factor=st.integers(1, 6),
    partitions=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_no_machine_has_two_replicas_of_a_partition(
    machines: int, workers: int, factor: int, partitions: int, seed: int
) -> None:
    factor = min(factor, machines)
    brokers = {
        NodeId(worker * 1000 + machine): broker(f"10.0.0.{machine}")
        for machine in range(machines)
        for worker in range(workers)
    }
    domains = failure_domains(brokers)
    usable = [UsableBroker(node, domains[node], False) for node in brokers]
    placed = place_replicas(usable, partitions, factor, random.Random(seed))
    assert not isinstance(placed, Refusal)
    for replicas in placed:
        assert len({node % 1000 for node in replicas}) == factor


@given(
    racks=st.integers(1, 3),
    machines=st.integers(1, 4),
    workers=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    down=st.integers(0, 11),
    factor=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_machines_of_a_rack_share_its_replicas(
    racks: int, machines: int, workers: list[int], down: int, factor: int, seed: int
) -> None:
    """A rack's replicas are on as many machines as it has, one of which may be down with all its workers."""
    usable = [
        UsableBroker(NodeId(1000 * worker + machine), f"r{machine % racks}", machine == down, f"m{machine}")
        for machine in range(machines * racks)
        for worker in range(workers[machine])
    ]
    if machines * racks == 1:
        down = -1
        usable = [one._replace(fenced=False) for one in usable]
    factor = min(factor, len(usable))
    placed = place_replicas(usable, 40, factor, random.Random(seed))
    assert not isinstance(placed, Refusal)
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] % 1000 != down
        for rack in range(racks):
            here = [node % 1000 for node in replicas if node % 1000 % racks == rack]
            assert len(set(here)) == min(len(here), machines)


@pytest.mark.parametrize("rack", [None, "all"])
def test_new_topics_have_no_two_replicas_on_a_machine(rack: str | None) -> None:
    bench = Bench()
    for machine in (1, 2, 3):
        for worker in range(3):
            node = worker * 1000 + machine
            bench.register(node, listeners=(Endpoint("CLIENT", f"10.0.0.{machine}", 9092 + worker),), rack=rack)
            bench.beat(node)
    bench.create("t", partitions=40, factor=3)
    topic = bench.controller.committed.topic("t")
    assert topic is not None
    for partition in topic.partitions.values():
        assert {node % 1000 for node in partition.replicas} == {1, 2, 3}
