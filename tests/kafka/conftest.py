"""One running cluster for the modules that let foreign clients loose on it, and its helpers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator

import pytest

from tidelog.testing.cluster import Cluster

with warnings.catch_warnings():  # kafka-python reads its messages' definitions by functions that Python will drop
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin  # noqa: F401

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[Cluster]:
    """One node with listeners of both protocols on the loopback address."""
    config = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
    with Cluster(nodes=1, transport="grpc", config=config) as cluster:
        yield cluster


_numbers = itertools.count(1)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Names that no other test uses."""

    def name(what: str = "topic") -> str:
        return f"{what}-{next(_numbers)}"

    return name
