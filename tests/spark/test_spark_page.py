"""The pipelines of docs/spark.md run as they stand there, but for their address and their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.spark_connector import options, sink_columns, sink_options
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"

pytestmark = pytest.mark.timeout(300)


def facts(record: ConsumerRecord) -> tuple[object, ...]:
    return record.partition, record.offset, record.key, record.value, record.headers, record.timestamp


def test_the_pages_pipelines_write_what_they_say_once(
    spark: SparkSession,
    cluster: Cluster,
    fill: Callable[..., None],
    committed: Callable[[str], list[ConsumerRecord]],
    tmp_path: Path,
) -> None:
    for topic in ("orders", "large-orders", "counts", "daily", "orders-again"):
        cluster.create_topic(topic, partitions=2)
    fill("orders", "99", "100", partition=0, key=b"ann")
    fill("orders", "250", partition=1, key=b"bob")
    pipeline, progress, update, daily, archive, replay = re.findall(
        r"```python no-run\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(pipeline.strip().splitlines()) <= 25
    names: dict[str, Any] = {}

    def run(block: str) -> None:
        here = block.replace("127.0.0.1:9092", cluster.bootstrap)
        for place in ("checkpoints", "archive"):
            here = here.replace(f'"{place}/', f'"{tmp_path}/{place}/')
        exec(compile(here, str(PAGE), "exec"), names)

    def written(topic: str) -> list[tuple[bytes, bytes]]:
        return sorted((record.key or b"", record.value or b"") for record in committed(topic))

    assert "127.0.0.1:9092" in pipeline
    for _ in range(2):
        run(pipeline)
        assert written("large-orders") == [(b"ann", b"100"), (b"bob", b"250")]
    call = progress.split("\n\n")[1].splitlines()[0]
    run(progress.replace(call, f"lag = {call}"))
    assert names["lag"] == {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 0}
    run(update)
    assert written("counts") == [(b"ann", b"2"), (b"bob", b"1")]
    for _ in range(2):
        run(daily)
        assert written("daily") == [(b"ann", b"3"), (b"bob", b"5")]
    run(archive)
    for last in ("0", ".0.crc"):  # as after a death between the files of a batch and Spark's note
        (tmp_path / "checkpoints" / "archive" / "commits" / last).unlink()
    fill("orders", "7", partition=0, key=b"cat", headers=[("h", b"\xff")], timestamp_ms=1_800_000_000_000)
    run(archive)
    for _ in range(2):
        run(replay)
        assert [facts(one) for one in committed("orders-again")] == [facts(one) for one in committed("orders")]


def test_the_page_names_the_columns_and_options_that_the_sink_has() -> None:
    writing = PAGE.read_text(encoding="utf-8").split("## Writing")[1]
    columns, given = writing.split("| option |")
    assert set(re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE)) == set(sink_columns._TYPES)
    assert options.BOOTSTRAP in given
    for name in ("transactional.id", "transaction.timeout.ms", "acks", "enable.idempotence"):
        assert name in sink_options._REFUSED or name in sink_options._ONLY
        assert f"`tidelog.{name}" in given
    assert f"{sink_options.ABORT_TIMEOUT_S:.0f} s" in given
