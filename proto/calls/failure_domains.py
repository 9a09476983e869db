"""Which brokers fail together: those of a machine, and of a rack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from tidelog.proto.calls.controller_api import Endpoint

N = TypeVar("N", bound=int)


class Located(Protocol):
    """A broker: its ``broker.rack``, ``None`` if it has none, and the addresses that it advertises."""

    @property
    def rack(self) -> str | None: ...

    @property
    def listeners(self) -> Sequence[Endpoint]: ...


def machine_of(broker: Located) -> str | None:
    """Return the host that a broker advertises, the same for all nodes of a machine; ``None``: unknown."""
    return broker.listeners[0].host if broker.listeners else None


def failure_domains(brokers: Mapping[N, Located]) -> dict[N, str | None]:
    """Return each broker's rack. A broker without one gets its host instead if two of them share a host, as the nodes
    of one machine do, so that a partition's replicas go to different machines. If all of them share one, as in a test,
    or none do, ``None`` says the same."""
    hosts = {node: machine_of(one) or "" for node, one in brokers.items() if one.rack is None}
    crowds = Counter(hosts.values())
    if not 1 < len(crowds) < len(hosts):
        return {node: one.rack for node, one in brokers.items()}
    return {node: f"host {hosts[node]}" if node in hosts else one.rack for node, one in brokers.items()}
