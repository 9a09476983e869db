"""Clients of Go and JavaScript: a producer, transactions where they have them, and a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, expect, output, records
from tidelog.bench.ecosystem.installing import PROGRAMS, go_program, node_modules, program

RECORDS: Final = 1_000
KAFKAJS: Final = "2.2.4"

Start = tuple[Sequence[str], Mapping[str, str] | None]
"""A command and its environment."""


def _run(start: Callable[[], Start], texts: Sequence[str], root: Path) -> str:
    """``texts``: what committed records begin with."""
    command, environment = start()
    with clusters.running(root, 3) as cluster:
        with Admin(cluster.bootstrap) as admin:
            clusters.create_topic(admin, "orders", partitions=4, copies=3)
        read = output([*command, cluster.bootstrap, "orders", str(RECORDS)], environment=environment).splitlines()
        wanted = sorted(f"{text} {number}" for text in texts for number in range(RECORDS))
        expect("what the group read", wanted, sorted(read))
        there = records(cluster.bootstrap, "orders")
        expect("what is in the topic", wanted, sorted((record.value or b"").decode() for record in there))
    shown = f"{RECORDS} records of a producer"
    if len(texts) > 1:
        shown += f", as many of a committed transaction and of an aborted one; a group read {len(wanted)}"
    return f"{shown}, each once" if len(texts) > 1 else f"{shown}, read by a group, each once"


def _go(folder: str) -> Start:
    return [str(go_program(folder))], None


def _kafkajs() -> Start:
    environment = node_modules("kafkajs", f"kafkajs@{KAFKAJS}")
    return [program("node", "install Node.js 20"), str(PROGRAMS / "node" / "kafkajs_copy.js")], environment


SARAMA: Final = Check("sarama", "sarama 1.61.1", partial(_run, partial(_go, "sarama"), ("plain", "committed")))
KAFKA_GO: Final = Check("kafka-go", "kafka-go 0.4.51", partial(_run, partial(_go, "kafka_go"), ("plain",)))
KAFKA_JS: Final = Check("kafkajs", f"kafkajs {KAFKAJS}", partial(_run, _kafkajs, ("plain", "committed")))
