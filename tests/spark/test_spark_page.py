"""The pipeline of docs/spark.md runs as it stands there, but for its address and its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"

pytestmark = pytest.mark.timeout(300)


def test_the_pages_pipeline_counts_orders_by_customer(
    spark: SparkSession, cluster: Cluster, fill: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic("orders", partitions=2)
    fill("orders", "1", "2", partition=0, key=b"ann")
    fill("orders", "3", partition=1, key=b"bob")
    pipeline, progress = re.findall(r"```python no-run\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for written, here in (("127.0.0.1:9092", cluster.bootstrap), ("checkpoints/orders", str(tmp_path / "checkpoint"))):
        assert written in pipeline
        pipeline = pipeline.replace(written, here)
    names: dict[str, object] = {}
    exec(compile(pipeline, str(PAGE), "exec"), names)
    shown = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.count("|") == 3]
    assert sorted([cell.strip() for cell in row] for row in shown) == [
        ["ann", "2"],
        ["bob", "1"],
        ["customer", "count"],
    ]
    found = eval(compile(progress.split("\n\n")[1].splitlines()[0], str(PAGE), "eval"), _with(progress, names))
    assert found == {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 0}


def _with(block: str, names: dict[str, object]) -> dict[str, object]:
    exec(compile(block, str(PAGE), "exec"), names)
    return names
