"""The page for users of Kafka's clients names the APIs and versions that a node serves, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.chaos.fuzz.fuzz_run import address, served_versions
from tidelog.testing.cluster import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-clients.md"
ROW = re.compile(r"^\| \w+ \((\d+)\) \| (\d+)(?:–(\d+))? \|$", re.MULTILINE)


def test_the_page_lists_what_is_served(kafka_cluster: Cluster) -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    listed = {int(key): (int(least), int(most or least)) for key, least, most in rows}
    assert listed == served_versions(*address(kafka_cluster.kafka_bootstrap))
