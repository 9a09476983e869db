"""The demo's computation: the same by plain Python, from the log and from the file, as a batch and as a stream."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.demo.delays import query
from tidelog.demo.log.flights import find_files, read_flights, source_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000


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


def test_a_stream_emits_each_row_when_its_hour_is_over(spark: SparkSession, tmp_path: Path) -> None:
    """Several micro-batches; the last record, which has no carrier, ends the year and is not in the result."""
    values = [flight.value.decode() for flight in itertools.islice(read_flights(), ROWS)]
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "0.txt").write_text("\n".join(values[: ROWS // 2]))
    (parts / "1.txt").write_text("\n".join([*values[ROWS // 2 :], '{"time_hour":"2014-03-01T00:00:00Z"}']))
    records = spark.readStream.option("maxFilesPerTrigger", 1).text(str(parts))
    flights = query.flights_in_log(records).withWatermark("time_hour", f"{query.WATERMARK_DAYS} days")
    running = (
        query.delays(flights, *reference(spark))
        .writeStream.format("memory")
        .queryName("delays_in_a_test")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination(60)
    streamed = list(result(spark.table("delays_in_a_test")))
    expected = computed(source_lines(find_files())[: ROWS + 1])
    assert {key: json.loads(value) for key, value in streamed} == expected
    assert len(streamed) == len(expected) > 100
