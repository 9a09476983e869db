"""A whole cluster in one process, for tests of programs that use Tidelog (and for ours)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.async_cluster import AsyncCluster
    from tidelog.testing.cluster import Cluster

__all__ = ["AsyncCluster", "Cluster"]


def __getattr__(name: str) -> Any:
    # Lazy: pytest loads this package's plugin into every run, which must not pay for a node.
    if name == "Cluster":
        from tidelog.testing.cluster import Cluster

        return Cluster
    if name == "AsyncCluster":
        from tidelog.testing.async_cluster import AsyncCluster

        return AsyncCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
