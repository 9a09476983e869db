"""Word count with Quix Streams: a repartition topic, state with a changelog, exactly once."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application
from quixstreams.models import TopicConfig


def count(_: str, state: Any) -> str:
    found = state.get("count", 0) + 1
    state.set("count", found)
    return str(found)


def main() -> None:
    """Count until the end of the process."""
    bootstrap, directory = sys.argv[1:]
    app = Application(
        broker_address=bootstrap,
        consumer_group="word-count",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.5,
        state_dir=directory,
        consumer_extra_config={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_500},
        producer_extra_config={"transaction.timeout.ms": 10_000},
    )
    config = TopicConfig(num_partitions=4, replication_factor=3)
    lines = app.topic("lines", value_deserializer="str", config=config)
    counts = app.topic("counts", value_serializer="str", config=config)
    words = app.dataframe(lines).apply(str.split, expand=True)
    words.group_by(lambda word: word, name="words").apply(count, stateful=True).to_topic(counts)
    print("starts", flush=True)
    app.run()


if __name__ == "__main__":
    main()
