"""Kafka's VerifiableProducer and VerifiableConsumer: a group whose members come, go and are killed, as a broker is."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from tidelog import Admin, TopicPartition
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import STOPS_S, Check, Differs, expect, started, until
from tidelog.bench.ecosystem.checks.connect import VERSION
from tidelog.bench.ecosystem.checks.kafka_tools import JARS
from tidelog.bench.ecosystem.installing import jars, java

TOPIC: Final = "orders"
GROUP: Final = "verified"
PARTITIONS: Final = 6
RECORDS: Final = 20_000
RATE: Final = 400
SESSION_MS: Final = 6_000
COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
NEWER: Final = ("--group-protocol", "CONSUMER")
CLASSIC: Final = ("--group-protocol", "CLASSIC", "--assignment-strategy", COOPERATIVE)


class Member:
    """A VerifiableConsumer: what it said, and until when it lived."""

    def __init__(self, process: Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self._ended_ms: float | None = None

    def ends(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(STOPS_S)
        self._ended_ms = time.time() * 1000

    def has(self) -> set[int]:
        """Return the partitions that it has by now."""
        return {partition for partition, _, until_ms in self.spans() if until_ms == float("inf")}

    def spans(self) -> Iterator[tuple[int, float, float]]:
        """Yield each partition that it had, from when, and until when."""
        since: dict[int, float] = {}
        for event in events(self._log):
            if event["name"] == "partitions_assigned":
                since |= {each["partition"]: event["timestamp"] for each in event["partitions"]}
            elif event["name"] == "partitions_revoked":
                for each in event["partitions"]:
                    yield each["partition"], since.pop(each["partition"]), event["timestamp"]
        end = float("inf") if self._ended_ms is None else self._ended_ms
        yield from ((partition, begin, end) for partition, begin in since.items())

    def read(self) -> list[str]:
        return [event["value"] for event in events(self._log) if event["name"] == "record_data"]


def events(log: Path) -> Iterator[dict[str, Any]]:
    """Yield what such a program has told."""
    yield from (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line[-1] == "}")


def _run(root: Path) -> str:
    command = java(jars("kafka-tools", *JARS))
    settings = {"group.consumer.session.timeout.ms": str(SESSION_MS), "group.consumer.heartbeat.interval.ms": "1000"}
    with clusters.running(root, 3, settings) as cluster, ExitStack() as stack:
        with Admin(cluster.bootstrap) as admin:
            clusters.create_topic(admin, TOPIC, partitions=PARTITIONS, copies=3)
        about = ("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC)
        members: list[Member] = []

        def join(protocol: Sequence[str]) -> Member:
            log = root / f"consumer-{len(members)}.log"
            options = ("--group-id", GROUP, "--verbose", *protocol)
            tool = [*command, "org.apache.kafka.tools.VerifiableConsumer", *about, *options]
            members.append(Member(stack.enter_context(started(tool, log)), log))
            return members[-1]

        def share(*living: Member) -> None:
            until(
                f"{len(living)} members to share {PARTITIONS} partitions",
                lambda: (
                    all(member.has() for member in living) and sum(len(member.has()) for member in living) == PARTITIONS
                ),
            )

        first = join(NEWER)
        share(first)
        written = root / "producer.log"
        tool = [*command, "org.apache.kafka.tools.VerifiableProducer", *about]
        pace = ("--max-messages", str(RECORDS), "--throughput", str(RATE), "--acks", "-1")
        producer = stack.enter_context(started([*tool, *pace], written))
        second = join(NEWER)
        share(first, second)
        classic = join(CLASSIC)
        share(first, second, classic)
        first.ends(signal.SIGTERM)
        share(second, classic)
        second.ends(signal.SIGKILL)
        third = join(NEWER)
        share(third, classic)
        cluster.kill(1)
        fourth = join(NEWER)
        share(third, classic, fourth)
        cluster.start([1])
        cluster.wait_ready()
        classic.ends(signal.SIGTERM)
        share(third, fourth)
        producer.wait(4 * RECORDS / RATE)
        sent = {event["value"] for event in events(written) if event["name"] == "producer_send_success"}
        expect("acknowledged records", RECORDS, len(sent))
        until("every acknowledged record to be read", lambda: sent <= set[str]().union(*(m.read() for m in members)))
        for member in (third, fourth):
            member.ends(signal.SIGTERM)
        judge(members)
        with Admin(cluster.bootstrap) as admin:
            places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            committed = admin.list_consumer_group_offsets(GROUP)
            expect("records committed", RECORDS, sum(committed[place].offset for place in places))
        twice = sum(len(member.read()) for member in members) - RECORDS
    return (
        f"{RECORDS} records read by five members, one of them of the classic protocol, each at least once ({twice} "
        "again), and committed to the last; two left, one and a broker were killed (kill -9); no partition had two "
        "members at a time"
    )


def judge(members: Sequence[Member]) -> None:
    """Expect no two members to have a partition at one time, by what they said."""
    spans = sorted((*span, number) for number, member in enumerate(members) for span in member.spans())
    for (partition, _, end, one), (later, begin, _, other) in pairwise(spans):
        if partition == later and begin < end:
            raise Differs(f"partition {partition}: members {one} and {other} had it at once, from {begin} to {end}")


CHECK: Final = Check("verifiable", f"Kafka's VerifiableConsumer {VERSION}", _run)
