"""Free ports, where several processes look for them at once."""

from __future__ import annotations

import pytest

from tidelog.testing import ports


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What each of three workers of pytest-xdist is given."""
    given = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        given.append({port for _ in range(20) for port in ports.free_ports(40)})
    return given


def test_workers_of_one_run_never_choose_the_same_port(found: list[set[int]]) -> None:
    first, second, third = found
    assert max(first) < min(second)
    assert max(second) < min(third)
    assert min(first) >= ports._LOWEST
    assert max(third) < ports._ephemeral_low()


@pytest.mark.parametrize(("worker", "count"), [("gw3", "3"), ("gw0", "0"), ("master", "3"), ("gw0", "many")])
def test_what_names_no_worker_is_given_ports_as_well(monkeypatch: pytest.MonkeyPatch, worker: str, count: str) -> None:
    """A worker that takes the place of one that died has a number beyond the count."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", count)
    assert len(set(ports.free_ports(40))) == 40
