from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from .scripted_broker import ScriptedCluster


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    """Three scripted nodes, a topic "t" of three partitions, each led by another node."""
    found = ScriptedCluster(nodes=3)
    found.topic("t", 3)
    found.topic("one", 1)
    await found.start()
    yield found
    await found.stop()
