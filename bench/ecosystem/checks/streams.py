"""Kafka Streams under exactly_once_v2: words are counted while applications and a broker are killed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Final

from tidelog import Admin, Producer
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import WAIT_S, Check, expect, records, started, until
from tidelog.bench.ecosystem.installing import PROGRAMS, jars, java

VERSION: Final = "4.3.1"
JARS: Final = (("org.apache.kafka", "kafka-streams", VERSION), ("org.slf4j", "slf4j-nop", "1.7.36"))
SOURCE: Final = PROGRAMS / "java" / "WordCount.java"
PARTITIONS: Final = 4
LINES: Final = 4_000
WORDS_OF_A_LINE: Final = 3
WORDS: Final = tuple(f"word-{number}" for number in range(40))


def _run(root: Path) -> str:
    program = [*java(jars("streams", *JARS)), str(SOURCE)]
    with clusters.running(root, 3) as cluster, ExitStack() as stack:
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            for topic in ("lines", "counts"):
                clusters.create_topic(admin, topic, partitions=PARTITIONS, copies=3)

        def application(name: str) -> Popen[bytes]:
            log = root / f"{name}.log"
            log.touch()
            before = log.read_text().count("state RUNNING")
            command = [*program, bootstrap, str(root / name)]
            process = stack.enter_context(started(command, log))
            until(f"{name} to run ({log})", lambda: log.read_text().count("state RUNNING") > before, process)
            return process

        def written(what: int) -> None:
            until(f"{what} counts", lambda: len(records(bootstrap, "counts")) >= what)

        rng = random.Random(1)
        lines = [" ".join(rng.choices(WORDS, k=WORDS_OF_A_LINE)) for _ in range(LINES)]
        part = LINES // 4
        first, second = application("first"), application("second")
        _produce(bootstrap, lines[:part])
        written(part)
        first.kill()
        _produce(bootstrap, lines[part : 2 * part])
        first = application("first")
        cluster.kill(1)
        _produce(bootstrap, lines[2 * part : 3 * part])
        cluster.start([1])
        written(2 * part * WORDS_OF_A_LINE)
        first.kill()
        second.kill()
        _produce(bootstrap, lines[3 * part :])
        cluster.wait_ready()
        application("second")
        written(LINES * WORDS_OF_A_LINE)
        found: dict[str, list[int]] = defaultdict(list)
        for record in records(bootstrap, "counts"):
            found[(record.key or b"").decode()].append(int.from_bytes(record.value or b""))
        counted = Counter(word for line in lines for word in line.split())
        expect("counts of each word", {word: list(range(1, count + 1)) for word, count in counted.items()}, dict(found))
    return (
        f"{LINES * WORDS_OF_A_LINE} words of {LINES} lines: each word's counts are 1, 2, 3 … without a gap or a "
        "repetition, with three kill -9 of applications and one of a broker on the way"
    )


def _produce(bootstrap: str, lines: Sequence[str]) -> None:
    with Producer(bootstrap) as producer:
        for number, line in enumerate(lines):
            producer.send("lines", line.encode(), key=str(number).encode())
        producer.flush(WAIT_S)


CHECK: Final = Check("streams", f"Kafka Streams {VERSION}", _run)
