"""Python's own processors of streams."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, application, expect, produce, records, until
from tidelog.bench.ecosystem.checks.word_counts import counted
from tidelog.bench.ecosystem.installing import PROGRAMS, python_with

READY: Final = "starts"
RECORDS: Final = 2_000


def _counts(program: str, requirement: str, root: Path, *, kills: bool = True) -> str:
    command = [python_with(program, requirement), str(PROGRAMS / "python" / f"{program}_counts.py")]
    return counted(root, command, READY, int, kills=kills)


def _copy(root: Path) -> str:
    command = [python_with("faststream", "faststream[kafka]==0.7.8"), str(PROGRAMS / "python" / "faststream_copy.py")]
    lines = [f"line {number}" for number in range(RECORDS)]
    with clusters.running(root, 3) as cluster, ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            for topic in ("lines", "copies"):
                clusters.create_topic(admin, topic, copies=3)
        one, _ = (
            application(stack, [*command, cluster.bootstrap], root / f"{name}.log", READY) for name in ("one", "other")
        )

        def copied(what: int) -> list[str]:
            found: list[str] = []

            def enough() -> bool:
                found[:] = [(record.value or b"").decode() for record in records(cluster.bootstrap, "copies")]
                return len(set(found)) >= what

            until(f"{what} copies", enough)
            return found

        produce(cluster.bootstrap, lines[: RECORDS // 2])
        copied(RECORDS // 4)
        one.kill()
        cluster.kill(1)
        produce(cluster.bootstrap, lines[RECORDS // 2 :])
        cluster.start([1])
        found = copied(RECORDS)
        expect("different copies", set(lines), set(found))
    return (
        f"{RECORDS} records copied by two applications in a group, each at least once ({len(found) - RECORDS} twice), "
        "with kill -9 of an application and of a broker on the way"
    )


QUIX: Final = Check("quixstreams", "Quix Streams 3.28.1", partial(_counts, "quix", "quixstreams==3.28.1"))
FAUST: Final = Check(
    "faust", "faust-streaming 0.15.3", partial(_counts, "faust", "faust-streaming==0.15.3", kills=False)
)
"""Killed, it is not exactly once, nor is it on Apache Kafka: it has a transaction for each partition it writes to."""
FASTSTREAM: Final = Check("faststream", "FastStream 0.7.8", _copy)
