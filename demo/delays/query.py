"""The demo's computation with Spark: delays by carrier and hour, with the airline's name and the weather.

One definition serves both sides. The stream reads flights from the log, and emits a row when its hour is over (append
mode: a row never changes, so an extra or missing row is a fault of the transport, not of the computation). The batch
query reads the same flights from the source's file. Sums are of whole minutes, and weather has only extremes: nothing
depends on the order of the flights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATERMARK_DAYS: Final = 30
"""How late a flight may be. Partitions are filled by the hash of carrier and number, and read in proportion to their
lengths: as timetables change with the seasons, one is up to 14 days ahead of another."""
FLIGHT_SCHEMA: Final = "time_hour timestamp, hour int, carrier string, origin string, dep_delay int"
"""The flight fields in use: hour of the scheduled departure (UTC, and of the day in New York), carrier, airport, delay
in minutes (null: the flight was cancelled)."""
TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss'Z'"
FIELDS: Final = (
    "hour", "carrier", "airline", "local_hour", "flights", "cancelled", "delay_minutes", "delay_mean", "delay_max",
    "wind_max_mph", "precipitation_max_in", "visibility_min_mi",
)  # fmt: skip
"""The fields of a result row, as JSON in the record's value."""


def flights_in_log(records: DataFrame) -> DataFrame:
    """Return flights from the topic's records; ``records`` has the source's columns."""
    from pyspark.sql import functions as f

    made = records.select(f.from_json(f.col("value").cast("string"), FLIGHT_SCHEMA).alias("flight"))
    return made.select("flight.*")


def flights_in_file(spark: SparkSession, path: str) -> DataFrame:
    """Return flights from the source's flights.csv."""
    return _csv(spark, path, FLIGHT_SCHEMA)


def airlines(spark: SparkSession, path: str) -> DataFrame:
    """Return names by carrier, from the source's airlines.csv."""
    return _csv(spark, path, "carrier string, name string")


def weather(spark: SparkSession, path: str) -> DataFrame:
    """Return one row for each airport and hour, from the source's weather.csv: wind in mph, precipitation in inches,
    visibility in miles."""
    return _csv(
        spark, path, "origin string, time_hour timestamp, wind_speed double, precip double, visib double"
    ).withColumnsRenamed({"origin": "at", "time_hour": "at_hour"})


def delays(flights: DataFrame, weather: DataFrame, airlines: DataFrame) -> DataFrame:
    """Return columns ``key`` and ``value``, both strings: carrier and hour, and :data:`FIELDS` as JSON.

    The joins are left joins: a stream's last record has no carrier and only moves the watermark (with an inner join,
    Spark would filter it out before the watermark sees it).
    """
    from pyspark.sql import functions as f

    there = (f.col("origin") == f.col("at")) & (f.col("time_hour") == f.col("at_hour"))
    made = (
        flights.join(f.broadcast(weather), there, "left")
        .groupBy(f.window("time_hour", "1 hour").alias("window"), "carrier")
        .agg(
            f.max("hour").alias("local_hour"),
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
            f.sum("dep_delay").alias("delay_minutes"),
            f.round(f.avg("dep_delay"), 3).alias("delay_mean"),
            f.max("dep_delay").alias("delay_max"),
            f.round(f.max("wind_speed"), 3).alias("wind_max_mph"),
            f.max("precip").alias("precipitation_max_in"),
            f.min("visib").alias("visibility_min_mi"),
        )
        .join(f.broadcast(airlines), "carrier", "left")
        .withColumn("hour", f.date_format("window.start", TIME_FORMAT))
        .withColumnRenamed("name", "airline")
    )
    value = f.to_json(f.struct(*FIELDS), {"ignoreNullFields": "false"})
    return made.select(f.concat_ws(" ", "carrier", "hour").alias("key"), value.alias("value"))


def _csv(spark: SparkSession, path: str, schema: str) -> DataFrame:
    """Read the named columns of a file with a header, in any order; NA is null."""
    from pyspark.sql import functions as f

    found = spark.read.csv(path, header=True, nullValue="NA")
    wanted = [column.rsplit(maxsplit=1) for column in schema.split(", ")]
    return found.select(*(f.col(name).cast(kind).alias(name) for name, kind in wanted))
