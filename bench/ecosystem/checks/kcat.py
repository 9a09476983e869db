"""kcat: every codec, offsets, a group, metadata, on one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, expect, output, records
from tidelog.bench.ecosystem.installing import program

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS: Final = 500
TOPIC: Final = "orders"


def _run(root: Path) -> str:
    kcat = program("kcat", "install it (Debian, Ubuntu: apt-get install kcat)")
    version = output([kcat, "-V"]).split("Version ")[1].split()[0]
    with clusters.running(root, 3) as cluster:
        with Admin(cluster.bootstrap) as admin:
            clusters.create_topic(admin, TOPIC, copies=3)
        start = [kcat, "-b", cluster.bootstrap]
        for codec in CODECS:
            lines = "".join(f"{codec}:{codec} {number}\n" for number in range(RECORDS))
            output([*start, "-P", "-t", TOPIC, "-K", ":", "-z", codec, "-X", "enable.idempotence=true"], given=lines)
        wanted = sorted(f"{codec}:{codec} {number}" for codec in CODECS for number in range(RECORDS))
        there = records(cluster.bootstrap, TOPIC)
        found = [f"{(record.key or b'').decode()}:{(record.value or b'').decode()}" for record in there]
        expect("what is in the topic", wanted, sorted(found))
        read = output([*start, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q", "-K", ":"])
        expect("what kcat reads", wanted, sorted(read.splitlines()))
        last = output([*start, "-C", "-t", TOPIC, "-p", "0", "-o", "-3", "-e", "-q", "-K", ":"])
        expect(
            "the last three",
            [text for text, one in zip(found, there, strict=True) if one.partition == 0][-3:],
            last.splitlines(),
        )
        options = ["-X", "auto.offset.reset=earliest", "-X", "isolation.level=read_committed", "-e", "-q", "-K", ":"]
        grouped = output([*start, *options, "-G", "readers", TOPIC])
        expect("what a group reads", wanted, sorted(grouped.splitlines()))
        expect("what it reads next", "", output([*start, *options, "-G", "readers", TOPIC]))
        (topic,) = json.loads(output([*start, "-L", "-J", "-t", TOPIC]))["topics"]
        expect("replicas", [3] * clusters.PARTITIONS, [len(one["replicas"]) for one in topic["partitions"]])
    return (
        f"kcat {version}: {len(wanted)} records in with {', '.join(CODECS)}, out by offsets and in a group that goes "
        "on where it was; metadata"
    )


CHECK: Final = Check("kcat", "kcat of this machine", _run)
