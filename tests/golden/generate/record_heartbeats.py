"""Writes ``../heartbeats.json``: what Apache Kafka answers to the scripts of ``tests/kafka/heartbeat_scripts.py`` and
``tests/kafka/conversion_scripts.py``.

Run from the root of the checkout, with Kafka's jars there (``./dev beside-kafka --jars``)::

    .venv/bin/python -m tests.golden.generate.record_heartbeats
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.kafka.conversion_scripts import CONVERSIONS, play_conversion
from tests.kafka.heartbeat_scripts import SCRIPTS, TOPICS, play, topic_ids
from tests.kafka.wire_client import WireClient

FILE: Final = Path(__file__).resolve().parent.parent / "heartbeats.json"
SETTINGS: Final = {
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignor.offload.enable": "false",
}
"""Kafka is to make targets at once, as Tidelog does for small groups."""


def record(bootstrap: str, create: Callable[[str, int], None]) -> dict[str, Any]:
    for name, partitions in TOPICS.items():
        create(name, partitions)
    ids = topic_ids(bootstrap)
    return {
        "answers": {
            name: play(bootstrap, script, f"golden-{number}", ids)
            for number, (name, script) in enumerate(SCRIPTS.items())
        },
        "conversions": {
            name: play_conversion(bootstrap, script, f"converted-{number}", ids)
            for number, (name, script) in enumerate(CONVERSIONS.items())
        },
    }


def main() -> int:
    from tidelog.bench.kafka_side.kafka import VERSION, class_path, running

    with (
        tempfile.TemporaryDirectory() as directory,
        running(class_path(bring=False), Path(directory), brokers=1, controllers=1, settings=SETTINGS) as (
            bootstrap,
            _,
        ),
    ):

        def create(name: str, partitions: int) -> None:
            with WireClient(bootstrap) as wire:
                topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
                wire.ask(19, 5, topics=topics, timeout=30_000)

        found = record(bootstrap, create)
    FILE.write_text(json.dumps({"kafka": VERSION, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
