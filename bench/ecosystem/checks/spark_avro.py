"""Spark's own Avro functions with a schema registry: the program ``spark_avro``, between foreign serializers."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, expect, output, records
from tidelog.bench.ecosystem.checks import karapace
from tidelog.bench.ecosystem.installing import PROGRAMS, jars, python_with
from tidelog.testing.ports import LOOPBACK, free_ports

AVRO: Final = "4.2.0"
"""The newest on Maven Central."""
ORDERS: Final = 300
LARGE: Final = 100
"""The first id that the example keeps."""
_QUERY: Final = "tidelog.bench.ecosystem.programs.spark_avro"


def _run(root: Path) -> str:
    karapace.python_with_karapace()
    (package,) = jars("spark-avro", ("org.apache.spark", "spark-avro_2.13", AVRO), alone=True)
    orders = [python_with("serializers", karapace.SERIALIZERS), str(PROGRAMS / "python" / "avro_orders.py")]
    with clusters.running(root, 1) as cluster, ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            for topic in ("orders-avro", "large-orders-avro"):
                clusters.create_topic(admin, topic, partitions=2, copies=1)
        (port,) = free_ports(1)
        karapace.start_registry(stack, root, cluster.bootstrap, port, copies=1)
        registry = f"http://{LOOPBACK}:{port}"
        output([*orders, "write", cluster.bootstrap, registry, str(ORDERS)])
        query = [sys.executable, "-P", "-m", _QUERY, cluster.bootstrap, registry, str(root / "checkpoint")]
        environment = {**os.environ, "SPARK_AVRO": str(package)}
        for _ in range(2):  # the second finds nothing left
            output(query, environment=environment)
        made = records(cluster.bootstrap, "large-orders-avro")
        expect("large orders", ORDERS - LARGE, len(made))
        expected = [[str(n), n, f"note {n}" if n % 2 else ""] for n in range(LARGE, ORDERS)]
        found = output([*orders, "read", cluster.bootstrap, registry, str(ORDERS - LARGE)])
        expect("large orders, read back", expected, json.loads(found))
    return (
        f"{ORDERS} orders of confluent-kafka's serializer, in two versions of a schema in turns, decoded by from_avro "
        f"with the schemas that their ids name; {ORDERS - LARGE} written by to_avro, exactly once, in a schema that "
        "the query registered; confluent-kafka's deserializer reads each"
    )


CHECK: Final = Check("spark-avro", f"Spark 4.3.0, its Avro functions {AVRO}, Karapace {karapace.VERSION}", _run)
