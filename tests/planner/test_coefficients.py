"""The costs of work that come with this version are what the recorded measurements give, and predict others."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.planner.coefficients import fitted, load, node_rates, non_negative_least_squares, save
from tidelog.cli.work.planner.demand import LIMITS, Demand
from tidelog.cli.work.planner.measuring import CHECKS, LOADS, Load, Seen, kept_pace
from tidelog.cli.work.planner.model import rates
from tidelog.cli.work.planner.shipped import SHIPPED

RECORDED = Path(__file__).parents[2] / "bench" / "capacity.jsonl"
POINTS = [
    (Load(*given_), Seen(*seen)) for given_, seen in map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
]
FITTED = [(given_, seen) for given_, seen in POINTS if given_ in LOADS and kept_pace(given_, seen)]
TLS_LOADS = (
    Load(200, 1_000, 3),
    Load(160, 64_000, 3),
    Load(100, 1_000, 3, readers=2),
    Load(50, 16_000, 3, readers=1),
    Load(400, 1_000, 3),
)
"""The loads that the costs of TLS are fitted to, by what they cost more on a cluster with it."""
ENCRYPTED = [
    (Load(*given_), Seen(*plain), Seen(*tls))
    for given_, plain, tls in map(json.loads, RECORDED.with_name("capacity_tls.jsonl").read_text().splitlines())
]
"""The same load at the same time on a cluster without TLS and on one with it."""
BOUND = [
    (Load(*given_), Seen(*seen), run, kind)
    for given_, seen, run, kind in map(
        json.loads, RECORDED.with_name("capacity_bound.jsonl").read_text(encoding="utf-8").splitlines()
    )
]
"""Nodes that get a processor whenever they want one, up to their bound. Each run had a new cluster."""
PROCESSOR = (
    "idle_cores", "append_s", "append_shared_s", "copy_s", "copy_shared_s", "send_s", "send_shared_s", "append_mb_s",
    "replicate_mb_s", "read_mb_s", "tls_in_mb_s", "base_bytes",
)  # fmt: skip


def test_the_shipped_coefficients_are_those_of_the_recorded_loads() -> None:
    again = asdict(fitted([seen for given_, seen in FITTED], SHIPPED, ""))
    for name in PROCESSOR:
        assert again[name] == pytest.approx(asdict(SHIPPED)[name], rel=1e-3), name


def test_loads_that_were_not_fitted_are_predicted_within_a_quarter() -> None:
    checked = [(given_, seen) for given_, seen in POINTS if given_ in CHECKS]
    assert len(checked) == 2 * len(CHECKS)
    assert sum(kept_pace(given_, seen) for given_, seen in checked) >= 6
    for given_, seen in checked:
        if kept_pace(given_, seen):
            assert SHIPPED.predicted(seen) == pytest.approx(seen.cores, rel=0.25)
        else:
            assert SHIPPED.predicted(seen) > seen.cores, "merged batches cost less; the plan is on the safe side"
        predicted = SHIPPED.memory_bytes(seen.cores / seen.nodes, node_rates(seen).mb_s)
        assert predicted == pytest.approx(seen.memory_bytes, rel=0.15)
        assert seen.replicated_mb == pytest.approx((seen.copies - 1) * seen.append_mb, rel=0.05), "between nodes"
        assert seen.read_mb == pytest.approx(seen.readers * seen.append_mb, rel=0.05)


def test_loads_near_the_bound_are_predicted_within_a_quarter() -> None:
    """Costs are fitted to other loads of the same hour. If readers fall behind, a load costs less than predicted, so
    only those near the bound have an upper one. A node keeps the memory of its busiest time."""
    costs = fitted([seen for _, seen, _, kind in BOUND if kind == "fit"], SHIPPED, "")
    assert asdict(costs)["busy_bytes"] == pytest.approx(SHIPPED.busy_bytes, rel=1e-3)
    assert asdict(costs)["stream_bytes"] == pytest.approx(SHIPPED.stream_bytes, rel=1e-3)
    near = 0
    for given_, seen, run, kind in BOUND:
        assert kept_pace(given_, seen)
        cores, predicted = seen.cores / seen.nodes, costs.predicted(seen) / seen.nodes
        most_mb_s = max(node_rates(other).mb_s for _, other, its, _ in BOUND if its == run)
        if node_rates(seen).mb_s == most_mb_s:
            for one in (costs, SHIPPED):
                assert one.memory_bytes(predicted, most_mb_s) == pytest.approx(seen.memory_bytes, rel=0.15)
        if kind == "check":
            assert seen.replicated_mb == pytest.approx((seen.copies - 1) * seen.append_mb, rel=0.05), "between nodes"
            assert seen.read_mb == pytest.approx(seen.readers * seen.append_mb, rel=0.05)
            assert predicted >= 0.75 * cores
            if cores > LIMITS["processor"]:
                near += 1
                assert predicted <= 1.25 * cores
    assert near >= 2


def test_the_costs_of_tls_are_those_of_the_recorded_loads() -> None:
    rows, wanted = [], []
    for given_, plain, tls in ENCRYPTED:
        if given_ in TLS_LOADS and kept_pace(given_, plain) and kept_pace(given_, tls):
            rates_, each = node_rates(tls), tls.nodes / plain.cores
            batches = rates_.appends + rates_.copies + rates_.sends
            rows.append([batches * each, (rates_.append_mb + rates_.replicated_mb + rates_.read_mb) * each])
            wanted.append((tls.cores - plain.cores) / plain.cores)
    assert len(rows) == 5
    found = non_negative_least_squares(rows, wanted)
    assert found == pytest.approx([SHIPPED.tls_batch_s, SHIPPED.tls_copy_mb_s], rel=1e-3)


def test_encrypted_loads_that_were_not_fitted_are_predicted_within_a_quarter() -> None:
    """Also relative to what the same machine needed without TLS meanwhile, which it shared with other programs."""
    checked = [one for one in ENCRYPTED if one[0] not in TLS_LOADS]
    assert len(checked) == 8
    for given_, plain, tls in checked:
        assert kept_pace(given_, plain)
        assert kept_pace(given_, tls)
        predicted = SHIPPED.predicted(tls, tls=True)
        assert predicted == pytest.approx(tls.cores, rel=0.25)
        more = plain.cores + predicted - SHIPPED.predicted(tls)
        assert more == pytest.approx(tls.cores, rel=0.15)


def test_bytes_on_disk_are_predicted_within_two_in_a_hundred() -> None:
    for given_, seen in [*POINTS, *((given_, seen) for given_, seen, _, _ in BOUND)]:
        if given_.batches:
            size = min(given_.record_bytes, given_.batch_bytes)
            demand = Demand(record_bytes=size, batch_records=given_.batch_bytes // size)
            expected = rates(demand, SHIPPED).bytes_a_record * demand.batch_records * seen.batches / 1e6
            assert seen.append_mb == pytest.approx(expected, rel=0.02)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.floats(0, 10), min_size=3, max_size=3),
    st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=3, max_size=8),
)
def test_least_squares_are_not_negative_and_no_worse_than_the_truth(
    truth: list[float], rows: list[list[float]]
) -> None:
    wanted = [sum(a * b for a, b in zip(row, truth, strict=True)) for row in rows]
    found = non_negative_least_squares(rows, wanted)
    assert min(found) >= 0
    error = [
        sum(a * b for a, b in zip(row, found, strict=True)) - value for row, value in zip(rows, wanted, strict=True)
    ]
    assert max(map(abs, error)) <= 0.05 * max(wanted) + 1e-6


def test_too_few_loads_and_loads_without_readers_are_refused() -> None:
    seen = [one for _, one in FITTED]
    with pytest.raises(CommandFailed, match=r"expected at least 12 measured loads in which .* found 3"):
        fitted(seen[:3], SHIPPED, "")
    with pytest.raises(
        CommandFailed, match=r"expected measured loads with few batches for readers, .*read bytes, found none"
    ):
        fitted([one._replace(readers=0, read_mb=0) for one in seen], SHIPPED, "")


def test_a_file_of_coefficients_comes_back_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save(replace(SHIPPED, source="mine"), path)
    assert load(path) == replace(SHIPPED, source="mine")
    for text, expected in (
        ("{", "expected JSON from `tidelog plan calibrate`"),
        ("[]", "found list"),
        ("{}", r"found \[\]"),
        (json.dumps({**asdict(SHIPPED), "send_s": -1}), "send_s: expected a finite number of at least 0, found -1"),
        (json.dumps({**asdict(SHIPPED), "send_s": "1"}), "send_s"),
    ):
        path.write_text(text)
        with pytest.raises(CommandFailed, match=expected):
            load(path)
