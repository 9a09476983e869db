"""`tidelog consume --header`."""

from __future__ import annotations

import pytest

from tests.cli.in_process import Tidelog, runs_commands
from tests.client.consumer.test_header_filter import cluster, fill
from tidelog.testing import Cluster

__all__ = ["cluster"]


def test_the_command_filters(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tidelog: Tidelog = runs_commands(cluster.bootstrap, capfd, monkeypatch)
    topic = "commanded"
    cluster.create_topic(topic)
    fill(cluster, topic, 300)
    options = ("consume", topic, "--from-beginning", "--until-end")
    assert tidelog(*options, "--header", "kind=rare", "--header", "kind=nobody")[:2] == (0, "100\n200\n")
    for wrong in (("kind",), ("=a",), ("kind=a", "other=b")):
        code, _, err = tidelog(*options, *(part for one in wrong for part in ("--header", one)))
        assert code == 2
        assert "expected NAME=VALUE, with one NAME in all" in err
