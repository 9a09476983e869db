"""``tidelog features`` against a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing import Cluster

from .in_process import Tidelog, as_json, runs_commands


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        found.wait_for(lambda: 1 in found.node(1).view.image.controllers, "the controller is registered")
        yield found


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_levels_are_shown_lowered_and_finalised_again(tidelog: Tidelog) -> None:
    found = as_json(tidelog("features", "describe", "--json"))
    rows = {row["feature"]: (row["level"], row["min"], row["max"]) for row in found["features"]}
    assert rows == {"group.version": (1, 0, 1), "metadata.version": (2, 1, 2), "transaction.version": (2, 0, 2)}
    assert {(node["role"], node["node"]) for node in found["nodes"]} == {("broker", 1), ("controller", 1)}
    assert "nothing was changed" in tidelog("features", "upgrade")[1]
    assert (
        "transaction.version: 2 would become 0"
        in tidelog("features", "downgrade", "transaction.version=0", "--dry-run")[1]
    )
    assert tidelog("features", "downgrade", "transaction.version=0") == (0, "transaction.version: 2 became 0\n", "")
    code, out, _ = tidelog("features", "describe")
    assert code == 0
    assert "transaction.version can be raised to 2: `tidelog features upgrade`" in out
    done = as_json(tidelog("features", "upgrade", "--json"))
    assert done == {
        "changed": True, "before": {"transaction.version": 0}, "after": {"transaction.version": 2}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("upgrade", "metadata.version"), "expected FEATURE=LEVEL, such as metadata.version=1"),
        (("upgrade", "metadata.version=x"), "expected FEATURE=LEVEL"),
        (("upgrade", "metadata.version=1", "metadata.version=1"), "found metadata.version twice"),
        (("upgrade", "metadata.version=7"), "expected a level of 1 to 2, found 7; no level was changed"),
        (("upgrade", "transaction.version=1"), "a downgrade must be asked for as one"),
        (("downgrade", "metadata.version=0"), "expected a level of 1 to 2, found 0"),
    ],
)
def test_what_cannot_be_is_refused(tidelog: Tidelog, arguments: tuple[str, ...], text: str) -> None:
    code, _, err = tidelog("features", *arguments)
    assert code != 0
    assert text in err
