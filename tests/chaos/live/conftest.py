"""The toxiproxy server, built once for all; and one laboratory that tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.chaos.laboratory.links.toxiproxy_build import toxiproxy_server
from tidelog.chaos.laboratory.processes.laboratory import Laboratory


@pytest.fixture(scope="session")
def toxiproxy() -> Path:
    return toxiproxy_server(print)


@pytest.fixture(scope="module")
def laboratory(toxiproxy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with Laboratory.running(tmp_path_factory.mktemp("laboratory") / "it", toxiproxy) as made:
        yield made
