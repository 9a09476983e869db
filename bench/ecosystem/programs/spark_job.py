"""A Spark job with Spark's own Kafka connector, which knows no password: what it needs comes as JSON on its input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidelog.spark_connector import runtime


def main() -> None:
    """Write rows as a batch, read them as a batch, copy them as a stream; print how many it saw, write its plans."""
    todo = json.load(sys.stdin)
    root, topics = Path(todo["root"]), todo["topics"]
    runtime.prepare(root / "spark")
    spark = runtime.session("token", master=todo["master"], config=todo["config"])
    kafka = {"kafka.bootstrap.servers": todo["bootstrap"], **todo["options"]}
    values = spark.range(todo["rows"]).selectExpr("CAST(CONCAT('row ', id) AS BINARY) AS value")
    values.write.format("kafka").options(**kafka, topic=topics["input"]).save()
    batch = spark.read.format("kafka").options(**kafka, subscribe=topics["input"], startingOffsets="earliest").load()
    plans = [str(batch._jdf.queryExecution())]
    read = batch.select("value").distinct().count()
    stream = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe=topics["input"], startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("kafka")
        .options(**kafka, topic=topics["output"], checkpointLocation=(root / "checkpoint").as_uri())
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination(todo["timeout_s"])
    plans.append(str(stream._jsq.explainInternal(True)))
    plans.append(json.dumps([dict(progress) for progress in stream.recentProgress], default=str))
    (root / "logs" / "plans").write_text("\n".join(plans))
    spark.stop()
    print(json.dumps({"read": read, "active": stream.isActive}))


if __name__ == "__main__":
    main()
