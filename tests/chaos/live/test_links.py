"""Links: the proxies' directions that make up a cut, healing by owner, and topologies by their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tidelog.chaos.laboratory.links.links import (
    CLIENTS,
    Impairment,
    Links,
    Route,
    Way,
    both,
    bridge,
    isolate,
    ring,
    topology,
)
from tidelog.proto.transport.network import Address

NODES = (1, 2, 3)


class Proxies:
    """Stands in for the proxy server: knows which toxic is on which direction of which proxy."""

    def __init__(self) -> None:
        self.toxics: dict[tuple[str, str], tuple[str, str]] = {}
        self.refusing: set[str] = set()

    def create(self, name: str, listen: Address, upstream: Address) -> None: ...

    def add_toxic(
        self, proxy: str, name: str, kind: str, stream: str, attributes: Mapping[str, int], toxicity: float
    ) -> None:
        assert (proxy, name) not in self.toxics
        self.toxics[proxy, name] = (kind, stream)

    def remove_toxic(self, proxy: str, name: str) -> None:
        del self.toxics[proxy, name]

    def enable(self, proxy: str, enabled: bool) -> None:
        (self.refusing.discard if enabled else self.refusing.add)(proxy)

    def directions(self) -> set[tuple[str, str]]:
        return {(proxy, stream) for (proxy, _), (_, stream) in self.toxics.items()}


def links() -> tuple[Proxies, Links]:
    proxies: Any = Proxies()
    nowhere = Address("127.0.0.1", 1)
    routes = [Route(a, b, "REPLICATION", nowhere, nowhere) for a in NODES for b in NODES if a != b]
    routes += [Route(a, b, "CONTROLLER", nowhere, nowhere) for a in NODES for b in NODES if a != b]
    routes += [Route(CLIENTS, b, "CLIENT", nowhere, nowhere) for b in NODES]
    return proxies, Links(proxies, routes)


def test_one_way_is_up_the_proxies_of_one_and_down_those_of_the_other() -> None:
    proxies, made = links()
    assert made.impair("a", [Way(1, 2)], Impairment("cut")) == 4
    assert proxies.directions() == {
        ("1-2-REPLICATION", "upstream"),
        ("1-2-CONTROLLER", "upstream"),
        ("2-1-REPLICATION", "downstream"),
        ("2-1-CONTROLLER", "downstream"),
    }


def test_a_listener_alone_can_be_cut() -> None:
    proxies, made = links()
    made.impair("a", both(1, 2), Impairment("cut"), frozenset({"CONTROLLER"}))
    assert {proxy for proxy, _ in proxies.directions()} == {"1-2-CONTROLLER", "2-1-CONTROLLER"}
    assert len(proxies.directions()) == 4


def test_clients_are_an_end() -> None:
    proxies, made = links()
    made.impair("a", topology("from-clients", 2, NODES), Impairment("cut"))
    made.impair("b", topology("to-clients", 3, NODES), Impairment("cut"))
    assert proxies.directions() == {("clients-2-CLIENT", "upstream"), ("clients-3-CLIENT", "downstream")}


def test_each_owner_heals_what_is_its_own() -> None:
    proxies, made = links()
    made.impair("a", isolate(1, NODES), Impairment("cut"))
    made.impair("b", [Way(1, 2)], Impairment("cut"))
    made.impair("b", [Way(1, 2)], Impairment("cut"))
    assert len(proxies.toxics) == 16 + 4
    made.heal("a")
    assert len(proxies.toxics) == 4
    made.heal("b")
    made.heal("b")
    assert not proxies.toxics


def test_a_proxy_refuses_until_the_last_owner_has_healed_it() -> None:
    proxies, made = links()
    made.impair("a", both(1, 2), Impairment("refuse"))
    made.impair("b", both(1, 2), Impairment("refuse"))
    assert len(proxies.refusing) == 4
    made.heal("a")
    assert len(proxies.refusing) == 4
    made.heal("b")
    assert not proxies.refusing


def test_a_bridge_leaves_its_middle_whole_and_nothing_else_across() -> None:
    assert set(bridge(2, NODES)) == {Way(1, 3), Way(3, 1)}
    ways = set(bridge(3, range(1, 6)))
    assert not any(3 in way for way in ways)
    assert len(ways) == 8


def test_in_a_ring_each_is_heard_by_one() -> None:
    for nodes in (NODES, range(1, 6)):
        cut = set(ring(nodes))
        for node in nodes:
            heard_by = [other for other in nodes if other != node and Way(node, other) not in cut]
            assert len(heard_by) == 1


@pytest.mark.parametrize(("name", "hears", "is_heard"), [("deaf", False, True), ("mute", True, False)])
def test_deaf_and_mute(name: str, hears: bool, is_heard: bool) -> None:
    cut = set(topology(name, 1, NODES))
    assert all((Way(other, 1) not in cut) == hears for other in (2, 3))
    assert all((Way(1, other) not in cut) == is_heard for other in (2, 3))
    assert Way(2, 3) not in cut


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a topology"):
        topology("star", 1, NODES)
    with pytest.raises(ValueError, match="a kind of impairment"):
        Impairment("explode").toxic()
