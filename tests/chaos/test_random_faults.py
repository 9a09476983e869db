"""Random faults on whole clusters; longer runs: ``python -m tidelog.chaos.random_faults --seeds 1-20``.

What is wrong on purpose and must be found is in ``test_random_fault_judgement.py``.

``TIDELOG_FAULT_SEEDS`` (as ``1-20``) and ``TIDELOG_FAULT_SECONDS`` make the test longer.
"""

from __future__ import annotations

import os

import pytest

from tidelog.chaos.random_faults import run
from tidelog.testing.async_cluster import GRPC, MEMORY

FIRST, _, LAST = os.environ.get("TIDELOG_FAULT_SEEDS", "1-2").partition("-")
SECONDS = float(os.environ.get("TIDELOG_FAULT_SECONDS", "2.5"))
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)


@pytest.mark.parametrize(("transport", "seed"), [*((MEMORY, seed) for seed in SEEDS), (GRPC, SEEDS[0])])
async def test_nothing_acknowledged_is_lost_doubled_or_reordered_through_random_faults(
    transport: str, seed: int
) -> None:
    report = await run(seed, SECONDS, transport)
    assert report.acknowledged, "nothing was acknowledged: this run shows nothing"
    assert report.faults
    assert not report.violations, str(report)
