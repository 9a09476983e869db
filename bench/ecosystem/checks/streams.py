"""Kafka Streams under exactly_once_v2."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from tidelog import Admin, Producer
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, expect, records
from tidelog.bench.ecosystem.checks.word_counts import PARTITIONS, WORDS, counted
from tidelog.bench.ecosystem.installing import PROGRAMS, jars, java

VERSION: Final = "4.3.1"
JARS: Final = (("org.apache.kafka", "kafka-streams", VERSION), ("org.slf4j", "slf4j-nop", "1.7.36"))


def _run(root: Path) -> str:
    program = [*java(jars("streams", *JARS)), str(PROGRAMS / "java" / "WordCount.java")]
    shown = counted(root, program, "state RUNNING", int.from_bytes, prepare=_fill_table, judge=_judge)
    return f"{shown}; so are those of windows, and each word is joined with its row of a table once"


def _kind(word: str) -> str:
    return f"kind of {word}"


def _fill_table(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        for topic in ("kinds", "windows", "joined"):
            clusters.create_topic(admin, topic, partitions=PARTITIONS, copies=3)
    with Producer(bootstrap) as producer:
        for word in WORDS:
            producer.send("kinds", _kind(word).encode(), key=word.encode())


def _judge(bootstrap: str, words: Counter[str]) -> None:
    joined = Counter((record.value or b"").decode() for record in records(bootstrap, "joined"))
    expect("joined words", {_kind(word): count for word, count in words.items()}, dict(joined))
    windows: dict[str, list[int]] = defaultdict(list)
    for record in records(bootstrap, "windows"):
        windows[(record.key or b"").decode()].append(int.from_bytes(record.value or b""))
    for window, counts in windows.items():
        expect(f"counts of {window}", list(range(1, len(counts) + 1)), counts)
    found: Counter[str] = Counter()
    for window, counts in windows.items():
        found[window.split()[0]] += len(counts)
    expect("words in windows", words, found)


CHECK: Final = Check("streams", f"Kafka Streams {VERSION}", _run)
