"""Fixtures: three replicas of one partition, or three replica managers."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from tests.replication.managers import Cluster, MakeCluster
from tests.replication.rig import MakeRig, Rig

hypothesis_settings.register_profile("replication", deadline=None)
hypothesis_settings.load_profile("replication")


@pytest.fixture
def rig(tmp_path: Path) -> MakeRig:
    """Makes rigs; the arguments are :class:`Rig`'s but for the path."""
    count = itertools.count()
    return lambda **more: Rig(tmp_path / str(next(count)), **more)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
def cluster(tmp_path: Path) -> MakeCluster:
    """Makes clusters, to be used as ``async with cluster() as c``; arguments are replication settings."""
    return lambda **settings: Cluster(tmp_path, **settings)
