"""``./dev beside-kafka``: warms Kafka up, gives both clusters the same work in turns, and prints medians and ratios."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.bench import clusters, history
from tidelog.bench.clusters import PARTITIONS
from tidelog.bench.kafka_side import kafka, spark
from tidelog.bench.kafka_side.clients import (
    LIBRDKAFKA_RECORDS,
    LIBRDKAFKA_WARM_UP,
    apart,
    java_consume,
    java_latency,
    java_produce,
)
from tidelog.bench.kafka_side.rows import Row, entries, report
from tidelog.cli.local.process import ProcessMark, use_of

CONSUMED: Final = 6_000_000
OURS: Final = "tidelog"
THEIRS: Final = "kafka"
IDLE_S: Final = 10.0
FIGURE: Final = "beside-kafka"
WORKLOAD: Final = f"Apache Kafka {kafka.VERSION}, three nodes each, in turns"


class Side(NamedTuple):
    """One cluster and its addresses; Tidelog's also has one for the SDK."""

    name: str
    bootstrap: str
    nodes: Sequence[ProcessMark]

    def cpu_s(self) -> float:
        return sum(use.cpu_s for mark in self.nodes if (use := use_of(mark)) is not None)

    def memory(self) -> float:
        """MB of memory of the largest node."""
        return max(use.memory_bytes for mark in self.nodes if (use := use_of(mark)) is not None) / 1e6


def _both(what: str) -> tuple[str, str]:
    return f"{OURS}_{what}", f"{THEIRS}_{what}"


ROWS: Final = (
    Row("records(), Java's consumer", "sdk_records", "kafka_java_consume"),
    Row("records(), confluent-kafka's consume()", "sdk_records", "kafka_confluent_consume"),
    Row("send() RF 1, Java's producer", "sdk_send_rf1", "kafka_java_100_rf1"),
    Row("send() RF 3, Java's producer", "sdk_send_rf3", "kafka_java_100_rf3"),
    Row("send() RF 1, confluent-kafka's produce()", "sdk_send_rf1", "kafka_confluent_rf1"),
    Row("send() RF 3, confluent-kafka's produce()", "sdk_send_rf3", "kafka_confluent_rf3"),
    Row("send_many RF 3, librdkafka at our Kafka listener", "sdk_send_many_rf3", "tidelog_librdkafka_100_rf3"),
    Row("librdkafka 100 B RF 3", "tidelog_librdkafka_100_rf3", "kafka_librdkafka_100_rf3"),
    Row("librdkafka 1 KiB RF 3", "tidelog_librdkafka_1024_rf3", "kafka_librdkafka_1024_rf3"),
    Row("Java 100 B RF 3", "tidelog_java_100_rf3", "kafka_java_100_rf3"),
    Row("Java 1 KiB RF 3", "tidelog_java_1024_rf3", "kafka_java_1024_rf3"),
    Row("nodes' processor time of a record, librdkafka 100 B RF 3, µs", *_both("librdkafka_100_rf3_cpu"), True),
    Row("nodes' processor time of a record, librdkafka 1 KiB RF 3, µs", *_both("librdkafka_1024_rf3_cpu"), True),
    Row("memory of the largest node, MB", *_both("memory"), True),
    Row("processor time of idle nodes, %", *_both("idle"), True),
    Row("one-record requests, Java, p50", "tidelog_java_p50", "kafka_java_p50", less_is_better=True),
    Row("one-record requests, Java, p99", "tidelog_java_p99", "kafka_java_p99", less_is_better=True),
)

Measure = Callable[[], Mapping[str, float]]


class Bench:
    """Both clusters, and the measurements of one round."""

    def __init__(self, classes: str, ours: Side, theirs: Side) -> None:
        self._classes = classes
        self._ours = ours
        self._theirs = theirs
        self._topics = 0

    def round(self) -> dict[str, float]:
        """Take every measurement once; compared ones in direct succession."""
        found: dict[str, float] = {}
        for measure in self._measurements():
            values = measure()
            found |= values
            print(", ".join(f"{name} {value:,.6g}" for name, value in values.items()), file=sys.stderr, flush=True)
        return found

    def warm(self, seconds: float) -> None:
        """Put load on Kafka's brokers, so that their JIT has compiled what matters."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for size in (100, 1024):
                self._java(self._theirs, size, 3)
                self._librdkafka(self._theirs, size)
            self._consume()
            self._latency(self._theirs)

    def _measurements(self) -> list[Measure]:
        ours, theirs = self._ours, self._theirs
        sides = (ours, theirs)
        return [
            self._consume,
            lambda: self._sdk("sdk_send", "sdk_send_rf1", 1),
            lambda: self._java(theirs, 100, 1),
            lambda: self._confluent(1),
            lambda: self._sdk("sdk_send", "sdk_send_rf3", 3),
            lambda: self._java(theirs, 100, 3),
            lambda: self._java(ours, 100, 3),
            lambda: self._confluent(3),
            lambda: self._sdk("sdk_send_many", "sdk_send_many_rf3", 3),
            *(lambda side=side, size=size: self._librdkafka(side, size) for size in (100, 1024) for side in sides),
            lambda: self._java(ours, 1024, 3),
            lambda: self._java(theirs, 1024, 3),
            lambda: self._latency(ours),
            lambda: self._latency(theirs),
            self._resources,
        ]

    # --- One measurement each -------------------------------------------------------------------------

    def _java(self, side: Side, size: int, copies: int) -> Mapping[str, float]:
        with Topic(side, self._name(), copies) as topic:
            return {f"{side.name}_java_{size}_rf{copies}": java_produce(self._classes, side.bootstrap, topic, size)}

    def _librdkafka(self, side: Side, size: int) -> Mapping[str, float]:
        with Topic(side, self._name(), 3) as topic:
            before = side.cpu_s()
            rate = apart("librdkafka_produce", side.bootstrap, topic, size, PARTITIONS)
            cpu_us = (side.cpu_s() - before) / (LIBRDKAFKA_RECORDS[size] + LIBRDKAFKA_WARM_UP) * 1e6
            return {f"{side.name}_librdkafka_{size}_rf3": rate, f"{side.name}_librdkafka_{size}_rf3_cpu": cpu_us}

    def _confluent(self, copies: int) -> Mapping[str, float]:
        with Topic(self._theirs, self._name(), copies) as topic:
            return {f"kafka_confluent_rf{copies}": apart("confluent_produce", self._theirs.bootstrap, topic, 100)}

    def _sdk(self, loop: str, figure: str, copies: int) -> Mapping[str, float]:
        with Topic(self._ours, self._name(), copies) as topic:
            return {figure: apart(loop, self._ours.bootstrap, topic, 100)}

    def _latency(self, side: Side) -> Mapping[str, float]:
        with Topic(side, self._name(), 3) as topic:
            half, most = java_latency(self._classes, side.bootstrap, topic)
            return {f"{side.name}_java_p50": half, f"{side.name}_java_p99": most}

    def _resources(self) -> Mapping[str, float]:
        """Measure both while idle."""
        sides = (self._ours, self._theirs)
        before = [side.cpu_s() for side in sides]
        time.sleep(IDLE_S)
        found = {
            f"{side.name}_idle": (side.cpu_s() - cpu) / IDLE_S * 100 for side, cpu in zip(sides, before, strict=True)
        }
        return found | {f"{side.name}_memory": side.memory() for side in sides}

    def _consume(self) -> Mapping[str, float]:
        found = {}
        for side in (self._ours, self._theirs):
            with Topic(side, self._name(), 1) as topic:
                apart("librdkafka_produce", side.bootstrap, topic, 100, PARTITIONS)
                if side is self._ours:
                    found["sdk_records"] = apart("sdk_records", side.bootstrap, topic, CONSUMED)
                else:
                    found["kafka_java_consume"] = java_consume(self._classes, side.bootstrap, topic, CONSUMED)
                    found["kafka_confluent_consume"] = apart(
                        "confluent_consume", side.bootstrap, topic, PARTITIONS, CONSUMED
                    )
        return found

    def _name(self) -> str:
        self._topics += 1
        return f"side-{self._topics}"


class Topic:
    """Yield a topic for one measurement, created and deleted by librdkafka's admin client, the same for both."""

    def __init__(self, side: Side, name: str, copies: int) -> None:
        from confluent_kafka.admin import AdminClient

        self._name = name
        self._copies = copies
        self._admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": "3"})

    def __enter__(self) -> str:
        from confluent_kafka.admin import NewTopic

        settings = {"min.insync.replicas": str(max(1, self._copies - 1))}
        wanted = NewTopic(self._name, PARTITIONS, self._copies, config=settings)
        for made in self._admin.create_topics([wanted]).values():
            made.result(60)
        end = time.monotonic() + 60
        while not self._whole():
            if time.monotonic() > end:
                raise RuntimeError(f"{self._name}: expected every replica in sync within 60 s")
            time.sleep(0.2)
        return self._name

    def _whole(self) -> bool:
        found = self._admin.list_topics(self._name, 10).topics[self._name].partitions.values()
        return len(found) == PARTITIONS and all(len(one.isrs) == self._copies and one.leader > 0 for one in found)

    def __exit__(self, *_: object) -> None:
        for gone in self._admin.delete_topics([self._name]).values():
            gone.result(60)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0; 1 if something failed; 2 for wrong usage or no Java."""
    parser = argparse.ArgumentParser(
        prog="./dev beside-kafka", description=f"Tidelog and Apache Kafka {kafka.VERSION} on this machine, in turns."
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds; prints their medians (5)")
    parser.add_argument(
        "--warm", type=float, default=10.0, metavar="MINUTES", help="load beforehand, for Kafka's JIT (10)"
    )
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history/")
    parser.add_argument("--jars", action="store_true", help="only fetch Kafka's jars, which some tests need")
    parser.add_argument(
        "--spark", action="store_true", help="Tidelog's Spark connector and Spark's own for Kafka, at Tidelog"
    )
    parser.add_argument("--nodes", type=int, default=1, help="with --spark: nodes, and replicas of each topic (1)")
    parser.add_argument("--minutes", type=float, default=15.0, help="with --spark: begin no round after that time (15)")
    options = parser.parse_args(arguments)
    for name in ("rounds", "nodes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1, found {getattr(options, name)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the nodes on the way out
    root = Path(tempfile.mkdtemp(prefix="tidelog-beside-kafka-"))
    try:
        if options.spark:
            figure, rows, workload = spark.FIGURE, spark.ROWS, f"{spark.WORKLOAD}; nodes: {options.nodes}"
            rounds = spark.rounds(root, options.rounds, options.nodes, options.minutes)
        else:
            figure, rows, workload = FIGURE, ROWS, WORKLOAD
            classes = kafka.class_path()
            if options.jars:
                return 0
            rounds = _rounds(root, classes, options.warm, options.rounds)
    except kafka.KafkaMissing as missing:
        print(f"./dev beside-kafka: {missing}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(root, ignore_errors=True)
    now = datetime.now(UTC)
    if not options.no_history:
        command = " ".join(["./dev beside-kafka", *(sys.argv[1:] if arguments is None else arguments)])
        history.append(entries(figure, rows, rounds, workload, command, now), now)
    print("\n".join(report(rows, rounds)))
    return 0


def _rounds(root: Path, classes: str, minutes: float, count: int) -> list[dict[str, float]]:
    with ExitStack() as stack:
        theirs = Side(THEIRS, *stack.enter_context(kafka.running(classes, root)))
        cluster = stack.enter_context(clusters.running(root, kafka.NODES))
        marks = [node.mark for node in cluster.nodes.values() if node.mark is not None]
        bench = Bench(classes, Side(OURS, cluster.bootstrap, marks), theirs)
        print(f"warming Kafka up for {minutes:g} min", file=sys.stderr, flush=True)
        bench.warm(60 * minutes)
        rounds = []
        for number in range(count):
            print(f"round {number + 1} of {count}", file=sys.stderr, flush=True)
            rounds.append(bench.round())
    return rounds


if __name__ == "__main__":
    sys.exit(main())
