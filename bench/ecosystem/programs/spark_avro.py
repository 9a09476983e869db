"""Orders in Avro from one topic into another, exactly once, with a schema registry and Spark's own functions.

    python spark_avro.py BROKERS REGISTRY CHECKPOINT

Each value in the topic ``orders-avro`` begins with a zero byte and the id of its schema in four bytes, as serializers
write it for a registry. The query decodes each batch with the schemas that its ids name, so that producers may move to
a newer schema while it runs; it keeps orders of 100 and more, and writes them to ``large-orders-avro`` in a schema of
its own, which it registers. Spark's Avro functions are a package of Spark: it is fetched by ``spark.jars.packages``,
unless ``SPARK_AVRO`` names its file.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import urllib.request
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from tidelog.spark_connector import runtime
from tidelog.spark_connector.foreach_batch import exactly_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE, SINK = "orders-avro", "large-orders-avro"
PACKAGE = "org.apache.spark:spark-avro_2.13:4.2.0"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}
"""What the query works with: producers may write every schema that this one can read."""
LARGE = {
    "type": "record",
    "name": "LargeOrder",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
}


class Registry:
    """A schema registry's REST interface, as far as a query needs it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.schema = cache(lambda number: str(self._asked(f"/schemas/ids/{number}")["schema"]))
        """The text of a schema by its id: it never changes."""

    def register(self, subject: str, schema: object) -> int:
        """Return the id of a schema, which is registered if it is not yet."""
        return int(self._asked(f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})["id"])

    def _asked(self, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def decoded(frame: DataFrame, registry: Registry) -> DataFrame:
    """Return the key and the fields of each order of a batch."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    number = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("int")
    rows = frame.select("key", "value", number.alias("schema_id")).persist()
    body = f.expr("substring(value, 6)")
    ids = [row.schema_id for row in rows.select("schema_id").distinct().collect()]
    each = [
        rows.where(f.col("schema_id") == one).select(
            "key", from_avro(body, registry.schema(one), {"avroSchema": json.dumps(ORDER)}).alias("order")
        )
        for one in ids
    ]
    return reduce(lambda one, other: one.union(other), each).select("key", "order.*")


def encoded(orders: DataFrame, schema_id: int) -> DataFrame:
    """Return key and value for the sink: the header, then the record."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import to_avro

    header = f.lit(struct.pack(">bI", 0, schema_id))
    value = f.concat(header, to_avro(f.struct("id", "note"), json.dumps(LARGE)))
    return orders.select("key", value.alias("value"))


def main(brokers: str, registry_url: str, checkpoint: str) -> None:
    local = os.environ.get("SPARK_AVRO")
    package = {"spark.jars": local} if local else {"spark.jars.packages": PACKAGE}
    config = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = runtime.session("avro-orders", master="local[2]", config=config | package)
    registry = Registry(registry_url)
    schema_id = registry.register(f"{SINK}-value", LARGE)
    given = {"tidelog.bootstrap.servers": brokers}

    def large(frame: DataFrame, _: int) -> DataFrame:
        return encoded(decoded(frame, registry).where("id >= 100"), schema_id)

    query = (
        spark.readStream.format("tidelog")
        .options(**given, subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger="100")
        .load()
        .writeStream.foreachBatch(exactly_once({**given, "topic": SINK}, large))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
