"""Spark's own Kafka connector on a secured cluster, by a delegation token of ``tidelog tokens create``."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog.bench.ecosystem import secured
from tidelog.bench.ecosystem.check import Check, Differs, expect, output, records
from tidelog.bench.ecosystem.installing import jars, program
from tidelog.bench.ecosystem.secured import ALICE, PREFIX, Secured
from tidelog.bench.kafka_side import spark

ROWS: Final = 1_000
CLUSTER: Final = "main"
JOB_TIMEOUT_S: Final = 120
_TOPICS: Final = {"input": f"{PREFIX}-input", "output": f"{PREFIX}-output"}


def _run(root: Path) -> str:
    found_jars = jars("spark-kafka", *spark.JARS, alone=True)
    tidelog = program("tidelog", "run it by ./dev")
    logs, token = root / "logs", root / "token"
    logs.mkdir()
    with secured.running(root) as found:
        for topic in _TOPICS.values():
            found.cluster.create_topic(topic, 3, 3, {"min.insync.replicas": "2"})
        login = root / "alice.properties"
        login.touch(0o600)
        settings = found.cluster.client_settings(ALICE).items()
        login.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings))
        access = ("--bootstrap", found.cluster.bootstrap, "--command-config", str(login))
        made = json.loads(
            output([tidelog, "tokens", "create", "--save-for-spark", CLUSTER, str(token), "--json", *access])
        )
        (full,) = json.loads(output([tidelog, "tokens", "list", "--hmac", "--json", *access]))
        job = _job(root, found, ",".join(map(str, found_jars)))
        environment = {**os.environ, "HADOOP_TOKEN_FILE_LOCATION": str(token)}
        command = [sys.executable, "-P", "-m", "tidelog.bench.ecosystem.programs.spark_job"]
        seen = json.loads(output(command, given=json.dumps(job), environment=environment).splitlines()[-1])
        expect("the job", {"read": ROWS, "active": False}, seen)
        texts = sorted(f"row {number}" for number in range(ROWS))
        for topic in _TOPICS.values():
            there = records(found.cluster.bootstrap, topic, found.cluster.client_settings(ALICE))
            expect(f"values in {topic}", texts, sorted((record.value or b"").decode() for record in there))
        hmac = base64.b64decode(full["hmac"])
        secrets = [found.passwords[ALICE].encode(), full["hmac"].encode(), hmac, hmac.hex().encode()]
        written = _written(root, secrets)
        output([tidelog, "tokens", "expire", made["token_id"], *access])
    return (
        f"{ROWS} rows written as a batch, read as a batch, copied as a stream, by executors in processes of their own; "
        f"the job knew a token and no password; neither secret is in the plans, event logs, checkpoints and logs "
        f"({written} files)"
    )


def _job(root: Path, found: Secured, classes: str) -> dict[str, object]:
    cluster = f"spark.kafka.clusters.{CLUSTER}"
    return {
        "root": str(root),
        "master": "local-cluster[1,2,1024]",
        "bootstrap": found.cluster.kafka_bootstrap,
        "topics": _TOPICS,
        "rows": ROWS,
        "timeout_s": JOB_TIMEOUT_S,
        "config": {
            "spark.jars": classes,
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (root / "logs").as_uri(),
            "spark.eventLog.compress": "false",
            f"{cluster}.auth.bootstrap.servers": found.cluster.kafka_bootstrap,
            f"{cluster}.security.protocol": "SASL_SSL",
        },
        "options": {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(found.authority),
        },
    }


def _written(root: Path, secrets: list[bytes]) -> int:
    """Return how many files Spark wrote. Raises :class:`Differs` if a secret is in one, or if what must be there is
    not: a search that finds nothing must have had something to search."""
    files = list(_files(root))
    for file in files:
        content = file.read_bytes()
        if any(secret in content for secret in secrets):
            raise Differs(f"{file}: expected no secret in it, found one")
    topic = _TOPICS["input"].encode()
    for place in ("logs/plans", "logs/*/events_*", "checkpoint/offsets/0"):
        if not any(topic in file.read_bytes() for file in root.glob(place)):
            raise Differs(f"{place}: expected the name of the topic in it, found none")
    return len(files)


def _files(root: Path) -> Iterator[Path]:
    for place in ("logs", "checkpoint", "spark", "warehouse"):
        for path in (root / place).rglob("*"):
            if path.is_file() and path.suffix not in (".jar", ".pem"):
                yield path


CHECK: Final = Check("spark-token", f"Spark 4.3.0, its Kafka connector {spark.CONNECTOR}, kafka-clients 3.9.2", _run)
