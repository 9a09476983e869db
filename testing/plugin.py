"""The pytest plugin: a fixture ``tidelog_cluster`` with a running cluster.

Every pytest run in an environment with Tidelog installed loads it, so it imports nothing from Tidelog
until a test asks for the fixture.

    @pytest.mark.tidelog_cluster(nodes=3)
    def test_orders(tidelog_cluster):
        tidelog_cluster.create_topic("orders", partitions=3)

Settings of the ini file (and the marker's arguments of the same names, which win): ``tidelog_nodes``,
``tidelog_transport`` (``memory`` or ``grpc``), ``tidelog_security`` (``tls``, ``scram``, ``tls+scram``),
``tidelog_scope`` (``function``, ``class``, ``module``, ``package`` or ``session``; with a scope other than
``function``, the plugin ignores the marker).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

MARKER = "tidelog_cluster"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("tidelog_nodes", "number of nodes of the tidelog_cluster fixture", default="1")
    parser.addini("tidelog_transport", "memory or grpc: what carries the tidelog_cluster fixture", default="")
    parser.addini(
        "tidelog_security", "tls, scram, tls+scram or empty: how the tidelog_cluster fixture is secured", default=""
    )
    parser.addini("tidelog_scope", "scope of the tidelog_cluster fixture", default="function")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(nodes=1, security=None, config={{}}): how the tidelog_cluster fixture is set up"
    )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("tidelog_scope")


@pytest.fixture(scope=_scope)
def tidelog_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a running cluster in this process; stop it and remove its files afterwards."""
    from tidelog.testing.cluster import Cluster

    options: dict[str, Any] = {
        "nodes": _number(request.config.getini("tidelog_nodes")),
        "transport": request.config.getini("tidelog_transport") or None,
        "security": request.config.getini("tidelog_security") or None,
    }
    if request.scope == "function":
        marker = request.node.get_closest_marker(MARKER)
        if marker is not None:
            if marker.args:
                raise pytest.UsageError(f"{MARKER}: expected keyword arguments only, found {marker.args!r}")
            options.update(marker.kwargs)
    with Cluster(**options) as cluster:
        yield cluster


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"tidelog_nodes: expected a whole number, found {text!r}") from None
