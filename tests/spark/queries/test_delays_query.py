"""The demo's computation and another one: the same by plain Python, from the file as a batch, from the log as a
stream."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.record import ConsumerRecord
from tidelog.demo.delays import driver, query
from tidelog.demo.log.flights import find_files, read_flights, source_lines
from tidelog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000
HOURS = 1_800
PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import functions as f
from tidelog.demo.delays import driver
from tidelog.spark_connector import runtime

bootstrap, work, flights, hours = sys.argv[1:]
config = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": driver.JAVA_OPTIONS,
    "spark.driver.extraJavaOptions": driver.JAVA_OPTIONS,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": f"{work}/warehouse",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": "false",
}
# Executors work in SPARK_HOME, which is in this directory, and not in the one that all Sparks share.
spark = runtime.session("pipelines", master="local-cluster[2,1,1024]", config=config, directory=Path(work, "spark"))
spark.sparkContext.setLogLevel("ERROR")
demo = driver.start(spark, bootstrap, f"{work}/delays", int(flights))
given = {"tidelog.bootstrap.servers": bootstrap}
source = spark.readStream.format("tidelog").options(**given, subscribe="weather", startingOffsets="earliest")
schema = "origin string, time_hour timestamp, wind_speed string, precip string"
days = (
    source.option("maxOffsetsPerTrigger", hours)
    .load()
    .select(f.from_json(f.col("value").cast("string"), schema).alias("row"))
    .select("row.*")
    .withWatermark("time_hour", "2 days")
    .groupBy(f.window("time_hour", "1 day").alias("day"), "origin")
    .agg(
        f.count("*").alias("hours"),
        f.max(f.expr("try_cast(wind_speed AS double)")).alias("wind"),
        f.sum(f.expr("cast(round(coalesce(try_cast(precip AS double), 0) * 100) AS int)")).alias("rain"),
    )
    .select(
        f.concat_ws(" ", "origin", f.to_date("day.start")).alias("key"),
        f.to_json(f.struct("hours", "wind", "rain"), {"ignoreNullFields": "false"}).alias("value"),
    )
)
writer = days.writeStream.format("tidelog").options(**given, topic="days")
weather = writer.option("checkpointLocation", f"{work}/days").trigger(availableNow=True).start()
demo.awaitTermination()
weather.awaitTermination()
print("EXECUTORS", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)  # the driver is one of them
spark.stop()
"""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The header and some flights, among them cancelled ones, some without weather, and some of an unknown carrier."""
    header, *rows = source_lines(find_files())
    some = rows[::250] + rows[:ROWS]
    return [header, *sorted({*some, *(row.replace(",HA,", ",XX,") for row in some)})]


def number(cell: str) -> float | None:
    return None if cell == "NA" else float(cell)


def computed(lines: list[str]) -> dict[str, dict[str, Any]]:
    """The result by its definition: nothing but dictionaries and loops."""
    files = find_files()
    names = {row["carrier"]: row["name"] for row in csv.DictReader(files["airlines.csv"].read_text().splitlines())}
    sky = {
        (row["origin"], row["time_hour"]): row for row in csv.DictReader(files["weather.csv"].read_text().splitlines())
    }
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for flight in csv.DictReader(lines):
        groups.setdefault((flight["carrier"], flight["time_hour"]), []).append(flight)
    made = {}
    for (carrier, hour), flights in groups.items():
        delays = [int(flight["dep_delay"]) for flight in flights if flight["dep_delay"] != "NA"]
        weather = [sky[at] for flight in flights if (at := (flight["origin"], hour)) in sky]

        def known(column: str, weather: list[dict[str, str]] = weather) -> list[float]:
            return [value for row in weather if (value := number(row[column])) is not None]

        made[f"{carrier} {hour}"] = {
            "hour": hour,
            "carrier": carrier,
            "airline": names.get(carrier),
            "local_hour": int(flights[0]["hour"]),
            "flights": len(flights),
            "cancelled": len(flights) - len(delays),
            "delay_minutes": sum(delays) if delays else None,
            "delay_mean": pytest.approx(sum(delays) / len(delays), abs=0.000_51) if delays else None,
            "delay_max": max(delays, default=None),
            "wind_max_mph": pytest.approx(max(known("wind_speed")), abs=0.000_51) if known("wind_speed") else None,
            "precipitation_max_in": max(known("precip"), default=None),
            "visibility_min_mi": min(known("visib"), default=None),
        }
    return made


def reference(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    files = find_files()
    return query.weather(spark, str(files["weather.csv"])), query.airlines(spark, str(files["airlines.csv"]))


def result(frame: DataFrame) -> Iterator[tuple[str, str]]:
    return ((row.key, row.value) for row in frame.collect())


def test_the_batch_query_computes_what_plain_python_does(spark: SparkSession, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("\n".join(lines) + "\n")
    found = list(result(query.delays(query.flights_in_file(spark, str(path)), *reference(spark))))
    expected = computed(lines)
    assert any(row["airline"] is None for row in expected.values())
    assert any(row["delay_minutes"] is None for row in expected.values())
    assert any(row["wind_max_mph"] is None for row in expected.values())
    assert len(found) == len(expected)
    rows = {key: json.loads(value) for key, value in found}
    assert rows == expected
    assert tuple(next(iter(rows.values()))) == query.FIELDS


def write(cluster: Cluster, topic: str, values: Iterable[bytes]) -> None:
    """Write values to a new topic, in turns to its two partitions. A last record moves the watermark past the year; it
    is in no result, because it has no carrier, and its own day is not over."""
    cluster.create_topic(topic, partitions=2)
    with cluster.producer() as producer:
        for count, value in enumerate((*values, b'{"time_hour":"2014-03-01T00:00:00Z"}')):
            producer.send(topic, value, partition=count % 2)
        producer.flush()


@pytest.mark.timeout(420)
def test_streams_of_two_executors_emit_each_row_once_when_its_time_is_over(
    cluster: Cluster, committed: Callable[[str], list[ConsumerRecord]], tmp_path: Path
) -> None:
    """The demo's stream, and the weather of each airport by day. Driver and executors are processes of their own."""
    with find_files()["weather.csv"].open() as file:
        hours = sorted(csv.DictReader(file), key=lambda row: row["time_hour"])[:HOURS]
    write(cluster, driver.FLIGHTS_TOPIC, (flight.value for flight in itertools.islice(read_flights(), ROWS)))
    write(cluster, "weather", (json.dumps(row).encode() for row in hours))
    for topic in (driver.DELAYS_TOPIC, "days"):
        cluster.create_topic(topic, partitions=2)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-P", str(program), cluster.bootstrap, str(tmp_path), str(ROWS // 2), str(HOURS // 2)]
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=tmp_path, env=environ)
    assert "EXECUTORS 2" in done.stdout, (done.stdout + done.stderr)[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]

    def written(topic: str) -> dict[str, Any]:
        found = committed(topic)
        rows = {(record.key or b"").decode(): json.loads(record.value or b"") for record in found}
        assert len(rows) == len(found)
        return rows

    expected = computed(source_lines(find_files())[: ROWS + 1])
    assert len(expected) > 100
    assert written(driver.DELAYS_TOPIC) == expected
    days: dict[str, list[dict[str, str]]] = {}
    for row in hours:
        days.setdefault(f"{row['origin']} {row['time_hour'][:10]}", []).append(row)
    assert len(days) > 60
    assert written("days") == {
        key: {
            "hours": len(rows),
            "wind": max((wind for row in rows if (wind := number(row["wind_speed"])) is not None), default=None),
            "rain": sum(round((number(row["precip"]) or 0) * 100) for row in rows),
        }
        for key, rows in days.items()
    }
