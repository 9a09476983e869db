"""The demo's second half: the log's flights through Spark into topic ``delays``, while the driver is killed.

Steps, in order: a stream from topic ``flights``, in micro-batches; kill -9 of the driver while a micro-batch is written
and undecided; a new driver on the same checkpoint, until the end; the same result computed from the source's files;
both compared row by row; a picture.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.demo.delays.driver import DELAYS_TOPIC, EXPECTED, FLIGHTS_FILE, FLIGHTS_TOPIC
from tidelog.demo.delays.driver_process import DriverProcess
from tidelog.demo.delays.judge import DelaysVerdict, Found, judge
from tidelog.demo.delays.kill import DriverKill, describe, kill_mid_batch, last_batch
from tidelog.demo.delays.picture import draw
from tidelog.demo.log.flights import find_files, source_lines
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog import Admin

DELAYS_PARTITIONS: Final = 3
BATCHES: Final = 12
"""Micro-batches for all flights; two more end the year."""
KILL_AFTER_BATCH: Final = 4
YEAR_OVER: Final = "2014-03-01T00:00:00Z"
"""Time of the record that ends the stream: later than the last flight by more than the allowed lateness."""
CHECKPOINT: Final = "delays-checkpoint"
PICTURE: Final = "delays.png"
SILENCE_MAX_S: Final = 300.0
"""A driver that takes longer than this for a step, such as a micro-batch, is stuck. Generous, for busy machines:
failures are noticed immediately."""
READ_TIMEOUT_S: Final = 60.0


@dataclass(slots=True)
class SparkResult:
    """The result. Times in seconds."""

    verdict: DelaysVerdict
    flights: int
    batches: int
    kill: DriverKill
    unseen: int
    """Records of the dead driver in the log, invisible to read_committed readers."""
    session_s: float
    """From the new driver's start until it had Spark."""
    went_on_s: float
    """From the kill until the interrupted batch was committed after all."""
    streaming_s: float
    """From the first driver's start to the end of the stream, with all interruptions."""
    recompute_s: float
    picture: Path | None
    """``None``: the topic has nothing to draw."""
    checkpoint: Path
    total_s: float

    @property
    def passed(self) -> bool:
        return self.verdict.passed


class SparkHalf:
    """One run, on a cluster whose topic ``flights`` holds the first ``rows`` flights.

    ``work`` is for temporary files; ``out`` gets the picture, the checkpoint and the output of both drivers. ``say``
    gets a line for each event.
    """

    def __init__(
        self, admin: Admin, bootstrap: str, work: Path, out: Path, *, rows: int, say: Callable[[str], None]
    ) -> None:
        self._admin = admin
        self._bootstrap = bootstrap
        self._work = work
        self._out = out
        self._rows = rows
        self._per_batch = -(-rows // BATCHES)
        self._say = say
        self._drivers: list[DriverProcess] = []

    def run(self) -> SparkResult:
        """Do everything. Raises :class:`WatchFailed` if an expected event does not happen; leaves no process behind."""
        started = time.monotonic()
        with alone(self._out):
            try:
                return self._run(started)
            finally:
                for driver in self._drivers:
                    driver.kill()

    def _run(self, started: float) -> SparkResult:
        self._prepare()
        streaming = time.monotonic()
        first = self._start("first-driver")
        query = self._wait_event(first, "query")["id"]
        self._say(
            f"Spark streams {FLIGHTS_TOPIC} to {DELAYS_TOPIC}, {self._per_batch:,} flights to a micro-batch; "
            f"it was up after {_seconds_of(first, 'session'):.1f} s"
        )
        kill = kill_mid_batch(self._admin, first, query, KILL_AFTER_BATCH, SILENCE_MAX_S)
        self._say(
            f"micro-batch {kill.batch} is not decided, {kill.prepared} of its transactions prepared, {kill.open} open: "
            "kill -9 of the driver, its JVM and its workers"
        )
        second = self._start("second-driver")
        session_s = float(self._wait_event(second, "session")["seconds"])
        self._wait_event(second, "query")
        self._wait_decided(second, query, kill.batch)
        went_on_s = time.monotonic() - kill.at
        self._say(
            f"a new driver went on from the checkpoint: batch {kill.batch} committed {went_on_s:.1f} s after the kill, "
            f"{session_s:.1f} s of them until Spark was up"
        )
        self._wait_event(second, "streamed")
        streaming_s = time.monotonic() - streaming
        batches = {event["batch"]: event["rows"] for event in second.events() if event["event"] == "batch"}
        self._say(f"the stream has ended: {max(batches) + 1} micro-batches in {streaming_s:.1f} s, the kill included")
        self._wait_event(second, "recomputed")
        expected = read_expected(self._work / EXPECTED)
        self._say(f"computed {len(expected):,} rows from the source's files")
        found = read_topic(self._bootstrap, DELAYS_TOPIC, "read_committed")
        seen = {(record.partition, record.offset) for record in found}
        unseen = [
            record
            for record in read_topic(self._bootstrap, DELAYS_TOPIC, "read_uncommitted")
            if (record.partition, record.offset) not in seen
        ]
        verdict = judge(expected, found)
        self._say(f"compared them with {len(found):,} rows of topic {DELAYS_TOPIC}")
        picture = self._out / PICTURE
        outcome = "each as computed directly, and once" if verdict.passed else "NOT what was computed directly"
        if found:
            draw(picture, [record.value for record in found], [record.value for record in unseen], kill.batch, outcome)
        wait_until(f"{second.name} to end", second.ended, SILENCE_MAX_S)
        return SparkResult(
            verdict=verdict,
            flights=self._rows,
            batches=max(batches) + 1,
            kill=kill,
            unseen=len(unseen),
            session_s=session_s,
            went_on_s=went_on_s,
            streaming_s=streaming_s,
            recompute_s=_seconds_of(second, "recomputed"),
            picture=picture if found else None,
            checkpoint=self._out / CHECKPOINT,
            total_s=time.monotonic() - started,
        )

    def _prepare(self) -> None:
        """Prepare the topic, the source's file, and the record that ends the year."""
        from tidelog import NewTopic, Producer

        self._work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._out / CHECKPOINT, ignore_errors=True)
        (self._out / PICTURE).unlink(missing_ok=True)
        lines = source_lines(find_files())
        (self._work / FLIGHTS_FILE).write_text("\n".join(lines[: self._rows + 1]) + "\n")
        settings = {"min.insync.replicas": "2"}
        self._admin.create_topics([NewTopic(DELAYS_TOPIC, DELAYS_PARTITIONS, 3, configs=settings)])
        with Producer(self._bootstrap) as producer:
            producer.send(FLIGHTS_TOPIC, json.dumps({"time_hour": YEAR_OVER}).encode()).result(READ_TIMEOUT_S)

    def _start(self, name: str) -> DriverProcess:
        arguments = (self._bootstrap, str(self._out / CHECKPOINT), str(self._work), str(self._per_batch))
        command = [sys.executable, "-P", "-m", "tidelog.demo.delays.driver", *arguments]
        self._drivers.append(driver := DriverProcess(self._out, f"delays-{name}", command))
        return driver

    def _wait_event(self, driver: DriverProcess, name: str) -> dict[str, Any]:
        """Wait as long as the driver makes progress."""
        heard = 0
        while (found := driver.event(name)) is None:

            def more(before: int = heard) -> bool:
                ended = driver.ended()
                if ended and driver.event(name) is None:
                    raise WatchFailed(f"{driver.name} ended before it said {name!r}")
                return len(driver.events()) > before

            wait_until(f"{driver.name} to say {name!r}", more, SILENCE_MAX_S, lambda: _last(driver))
            heard = len(driver.events())
        return found

    def _wait_decided(self, driver: DriverProcess, sink: str, batch: int) -> None:
        def decided() -> bool:
            driver.ended()
            return last_batch(describe(self._admin, sink)) >= batch

        wait_until(f"batch {batch} to be committed", decided, SILENCE_MAX_S, lambda: _last(driver))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Lock the checkpoint, which two demos must not share. Raises :class:`CommandFailed` for the second."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "delays.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandFailed(
                f"another demo is at work in {out}; wait for it, or name another place: --out"
            ) from None
        yield


def read_expected(directory: Path) -> dict[str, str]:
    """Return the batch query's results: values by key. Raises :class:`WatchFailed` for a duplicate key."""
    rows: dict[str, str] = {}
    for part in sorted(directory.glob("part-*.json")):
        for line in part.read_text().splitlines():
            row = json.loads(line)
            if row["key"] in rows:
                raise WatchFailed(f"the batch query computed {row['key']} twice")
            rows[row["key"]] = row["value"]
    return rows


def read_topic(bootstrap: str, topic: str, isolation_level: str) -> list[Found]:
    """Return all records of a topic, up to its current ends."""
    from tidelog import Consumer

    found: list[Found] = []
    with Consumer(bootstrap, isolation_level=isolation_level) as consumer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any(consumer.position(at) < end for at, end in ends.items()):
            if time.monotonic() > deadline:
                raise WatchFailed(f"could not read {topic} to its end within {READ_TIMEOUT_S:g} s")
            for batch in consumer.poll_batches(0.5):
                found += [
                    Found(batch.partition, record.offset, (record.key or b"").decode(), (record.value or b"").decode())
                    for record in batch
                ]
    return found


def _seconds_of(driver: DriverProcess, event: str) -> float:
    found = driver.event(event)
    return 0.0 if found is None else float(found["seconds"])


def _last(driver: DriverProcess) -> str:
    events = driver.events()
    return str(events[-1]) if events else "no word of it"
