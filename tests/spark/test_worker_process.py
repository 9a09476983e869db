"""What Spark's own Python processes save: imports that a process does not need, and collections of what it imported."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest
from pyspark.sql.types import BinaryType, StructType

from tidelog.spark_connector import worker_process
from tidelog.spark_connector.columns import schema
from tidelog.spark_connector.datasource import TidelogDataSource

SOURCE = TidelogDataSource({"tidelog.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"})
SINK = TidelogDataSource({"tidelog.bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
VALUES = StructType().add("value", BinaryType())


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_settled", set())
    yield
    gc.unfreeze()


def _started_as(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: SOURCE.reader(schema(False)),
        lambda: SOURCE.streamReader(schema(False)),
        lambda: SINK.writer(VALUES, False),
        lambda: SINK.streamWriter(VALUES, False),
    ],
)
def test_a_process_of_sparks_no_longer_collects_what_it_imported(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    ask()
    assert not frozen, "a driver's own process stays as its user wants it"
    _started_as(monkeypatch, "pyspark.daemon")
    for _ in range(3):
        ask()
    assert frozen == [1], "once: what a later batch drops is collected"


def test_collections_leave_out_what_was_there_then(monkeypatch: pytest.MonkeyPatch) -> None:
    _started_as(monkeypatch, "pyspark.daemon")
    before = len(gc.get_objects())
    worker_process.settle("sink")
    assert len(gc.get_objects()) < before / 2
    assert gc.get_freeze_count() > before / 2


def test_each_process_imports_only_what_it_needs() -> None:
    """The process that plans a stream reads nothing, tasks plan nothing, and a source does without a sink."""
    code = (
        "import json, sys; from tidelog.spark_connector import datasource as d, source, reading\n"
        "slow = ['pyarrow.compute', 'tidelog.client.admin.admin', 'tidelog.client.consumer.consumer',"
        " 'tidelog.client.producer.producer', 'tidelog.client.sink.ledger']\n"
        "print(json.dumps([name for name in slow if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert json.loads(done.stdout or "null") == [], done.stderr
