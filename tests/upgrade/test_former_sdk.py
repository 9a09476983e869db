"""The SDK of release 0.1 with a node of the present one: produces, reads, commits, transactions."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.upgrade.test_rolling_upgrade import release_0_1
from tidelog.cli.local.cluster import LocalCluster

__all__ = ["release_0_1"]

FORMER_CLIENT = """
import json, sys
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition, __version__

bootstrap = sys.argv[1]
with Admin(bootstrap) as admin:
    admin.create_topics([NewTopic("small", 1, 1)])
with Producer(bootstrap, transactional_id="former") as producer:
    producer.init_transactions()
    for committed in (False, True):
        producer.begin_transaction()
        for number in range(20):
            producer.send("small", str(number).encode(), partition=0)
        producer.flush()
        producer.commit_transaction() if committed else producer.abort_transaction()
with Producer(bootstrap) as producer:
    producer.send("small", b"last", partition=0).result()
found = []
settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
with Consumer(bootstrap, group_id="former", **settings) as consumer:
    consumer.subscribe(["small"])
    while len(found) < 21:
        found += [one.value.decode() for one in consumer.poll(1.0)]
    consumer.commit()
with Admin(bootstrap) as admin:
    offset = admin.list_consumer_group_offsets("former")[TopicPartition("small", 0)].offset
print(json.dumps({"release": __version__, "found": found, "offset": offset}))
"""


@pytest.mark.timeout(120)
def test_the_sdk_of_0_1_works_with_present_nodes(tmp_path: Path, release_0_1: str) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", nodes=1, rng=random.Random())
    script = tmp_path / "former.py"
    script.write_text(FORMER_CLIENT)
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=60.0)
        layout = json.loads((tmp_path / "cluster" / "cluster.json").read_text())
        address = f"127.0.0.1:{layout['nodes']['1']['client']}"
        done = subprocess.run(
            [release_0_1, "-P", str(script), address], capture_output=True, text=True, check=False, timeout=90
        )
    finally:
        cluster.kill(1)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["release"] == "0.1.0"
    assert said["found"] == [*map(str, range(20)), "last"]
    assert said["offset"] == 43, "both transactions with a marker each, and one more"
