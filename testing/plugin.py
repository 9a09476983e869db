"""The pytest plugin that comes with tidelog: the fixture ``tidelog_cluster``.

Everything of ours is imported when a test asks for it, so that other people's test runs pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Cluster


@pytest.fixture
def tidelog_cluster() -> Iterator[Cluster]:
    """A one-node cluster in this process; stopped and removed at the end of the test."""
    from tidelog.testing import Cluster

    with Cluster(nodes=1) as cluster:
        yield cluster
