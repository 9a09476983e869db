"""The same queries by Tidelog's connector and by Spark's own for Kafka, in one session, on one cluster of Tidelog."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.figures import median
from tidelog.bench.kafka_side import kafka
from tidelog.bench.kafka_side.rows import Row
from tidelog.bench.spark import queries
from tidelog.cli.work.workload import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog import Admin

CONNECTOR: Final = "4.2.0"
JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""Spark's Kafka connector, the newest on Maven Central; what else it needs comes with Spark."""
FIGURE: Final = "beside-spark-kafka"
WORKLOAD: Final = (
    f"Tidelog's connector and Spark's own for Kafka {CONNECTOR} at one cluster of Tidelog, local[2], the same topics, "
    "in turns; values of 100 B, six partitions; small triggers: two tasks of 50 rows"
)
RECORDS: Final = 3_000_000
GENERATED: Final = 500_000
SMALL: Final = queries.TASKS * queries.ROWS
"""Rows of a small trigger."""
_IN: Final = "in"
_FEW: Final = "few"


class Side(NamedTuple):
    """A connector: the name of its format, and the prefix of its clients' settings."""

    name: str
    bootstrap: str

    def options(self, **more: str) -> dict[str, str]:
        return {f"{self.name}.bootstrap.servers": self.bootstrap, **more}

    def source(self, **more: str) -> dict[str, str]:
        return self.options(startingOffsets="earliest", **more)


OURS: Final = "tidelog"
THEIRS: Final = "kafka"
_FIGURES: Final = (
    ("batch read, s", "read"),
    ("stream read, available now, s", "stream"),
    ("stream read, available now, its trigger alone, s", "stream_trigger"),
    ("source to sink, batch, s", "copy"),
    ("generate to sink, 500,000 rows, s", "generate"),
    ("trigger of a small batch, read only, ms", "trigger"),
    ("trigger of a small batch, with sink, ms", "trigger_sink"),
)
ROWS: Final = tuple(Row(name, f"{OURS}_{what}", f"{THEIRS}_{what}", less_is_better=True) for name, what in _FIGURES)


def jars() -> list[Path]:
    """Let Maven bring the connector, once; return its jars. Raises :class:`kafka.KafkaMissing`."""
    return kafka.jars(kafka.CACHE / f"spark-kafka-{CONNECTOR}", JARS, alone=True)


def rounds(root: Path, count: int, nodes: int, minutes: float) -> list[dict[str, float]]:
    """Measure everything for both, ``count`` times after a warm-up round that does not count; once at least, but no
    round begins after ``minutes``."""
    from tidelog import Admin

    classes = jars()
    with running(root, nodes) as cluster, Admin(cluster.bootstrap) as admin:
        create_topic(admin, _IN, copies=nodes)
        create_topic(admin, _FEW, copies=nodes, partitions=queries.TASKS)
        fill(cluster.bootstrap, _IN, 100, RECORDS, acks="all")
        fill(cluster.bootstrap, _FEW, 100, SMALL * queries.TRIGGERS_MAX, acks="all")
        with queries.session({"spark.jars": ",".join(map(str, classes))}) as spark:
            bench = Bench(spark, admin, nodes, root, [Side(name, cluster.bootstrap) for name in (OURS, THEIRS)])
            found: list[dict[str, float]] = []
            until = time.monotonic() + 60 * minutes
            while len(found) < 2 or (len(found) <= count and time.monotonic() < until):
                print(f"round {len(found)} of {count}", file=sys.stderr, flush=True)
                found.append(bench.round())
    return found[1:]


class Bench:
    """Two connectors in one session, and the measurements of one round."""

    def __init__(self, spark: SparkSession, admin: Admin, nodes: int, root: Path, sides: Sequence[Side]) -> None:
        self._spark = spark
        self._admin = admin
        self._nodes = nodes
        self._root = root
        self._sides = sides
        self._made = 0

    def round(self) -> dict[str, float]:
        """Take every measurement once for each side, in direct succession; another side begins each round."""
        self._sides = self._sides[::-1]
        found: dict[str, float] = {}
        measures: Sequence[Callable[[Side], Mapping[str, float]]] = (
            self._read, self._stream, self._copy, self._generate, self._trigger, self._trigger_sink,
        )  # fmt: skip
        for measure in measures:
            for side in self._sides:
                values = {f"{side.name}_{what}": value for what, value in measure(side).items()}
                found |= values
                print(", ".join(f"{name} {value:,.4g}" for name, value in values.items()), file=sys.stderr, flush=True)
        return found

    # --- One measurement each -------------------------------------------------------------------------

    def _read(self, side: Side) -> Mapping[str, float]:
        frame = self._batch(side)
        return {"read": _seconds(lambda: frame().write.format("noop").mode("overwrite").save())}

    def _stream(self, side: Side) -> Mapping[str, float]:
        """Read everything as a stream: how long from its start to its end, and how long its trigger took."""
        checkpoint = self._fresh()
        frame = self._spark.readStream.format(side.name).options(**side.source(subscribe=_IN)).load()
        started = time.perf_counter()
        trigger = queries.stream(frame, checkpoint, "noop", {}, rows=RECORDS)
        took = time.perf_counter() - started
        shutil.rmtree(checkpoint)
        return {"stream": took, "stream_trigger": trigger}

    def _copy(self, side: Side) -> Mapping[str, float]:
        frame = self._batch(side)
        return {"copy": self._written(side, lambda: frame().select("value"), RECORDS)}

    def _generate(self, side: Side) -> Mapping[str, float]:
        def frame() -> DataFrame:
            return self._spark.range(GENERATED, numPartitions=2).selectExpr(
                "string(id) key", "lpad(string(id), 100, 'x') value"
            )

        return {"generate": self._written(side, frame, GENERATED)}

    def _trigger(self, side: Side) -> Mapping[str, float]:
        return {"trigger": median(queries.triggers(self._small(side), self._fresh(), "noop", {}))}

    def _trigger_sink(self, side: Side) -> Mapping[str, float]:
        frame = self._small(side).select("value")
        triggers = queries.triggers(frame, self._fresh(), side.name, side.options(topic=self._topic()))
        return {"trigger_sink": median(triggers)}

    # --- Their parts ----------------------------------------------------------------------------------

    def _batch(self, side: Side) -> Callable[[], DataFrame]:
        return lambda: self._spark.read.format(side.name).options(**side.source(subscribe=_IN)).load()

    def _small(self, side: Side) -> DataFrame:
        options = side.source(subscribe=_FEW, maxOffsetsPerTrigger=str(SMALL))
        return self._spark.readStream.format(side.name).options(**options).load()

    def _written(self, side: Side, frame: Callable[[], DataFrame], rows: int) -> float:
        """Return the seconds of a batch write to a fresh topic, which must have the rows afterwards."""
        to = self._topic()
        options = side.options(topic=to)
        took = _seconds(lambda: frame().write.format(side.name).options(**options).mode("append").save())
        reader = self._sides[0]
        found = self._spark.read.format(reader.name).options(**reader.source(subscribe=to)).load().count()
        if found != rows:
            raise RuntimeError(f"{side.name}: expected {rows} rows in {to}, found {found}")
        return took

    def _topic(self) -> str:
        """Create a topic. It stays: Spark keeps Kafka's producers, which would ask for it again and again."""
        self._made += 1
        create_topic(self._admin, f"out-{self._made}", copies=self._nodes)
        return f"out-{self._made}"

    def _fresh(self) -> Path:
        self._made += 1
        return self._root / f"checkpoint-{self._made}"


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
