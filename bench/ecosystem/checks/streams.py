"""Kafka Streams under exactly_once_v2."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelog.bench.ecosystem.check import Check
from tidelog.bench.ecosystem.checks.word_counts import counted
from tidelog.bench.ecosystem.installing import PROGRAMS, jars, java

VERSION: Final = "4.3.1"
JARS: Final = (("org.apache.kafka", "kafka-streams", VERSION), ("org.slf4j", "slf4j-nop", "1.7.36"))


def _run(root: Path) -> str:
    program = [*java(jars("streams", *JARS)), str(PROGRAMS / "java" / "WordCount.java")]
    return counted(root, program, "state RUNNING", int.from_bytes)


CHECK: Final = Check("streams", f"Kafka Streams {VERSION}", _run)
