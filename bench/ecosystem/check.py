"""What a check of a foreign program is, and what the checks share: clusters, processes, and what is in a topic."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tidelog import Consumer, Producer, TopicPartition
from tidelog.cli.local.watch import wait_until
from tidelog.client.config.security import SecuritySettings
from tidelog.client.record import ConsumerRecord
from tidelog.testing.ports import LOOPBACK

RUN_TIMEOUT_S: Final = 300.0
WAIT_S: Final = 120.0
STOPS_S: Final = 30.0
REST_TIMEOUT_S: Final = 10.0
NOT_SECURED: Final[SecuritySettings] = {}


class Check(NamedTuple):
    """``run`` gets an empty directory. It returns one line that says what was shown, and raises if something differs
    from what must be there; :class:`tidelog.bench.ecosystem.installing.Missing` if the program cannot be had."""

    name: str
    what: str
    """The program and its version."""
    run: Callable[[Path], str]


class Differs(Exception):
    """A foreign program did something else than it does with Apache Kafka."""


def expect(what: str, expected: object, found: object) -> None:
    """Raise :class:`Differs` unless both are equal."""
    if expected != found:
        raise Differs(f"{what}: expected {expected!r}, found {found!r}"[:2000])


def output(command: Sequence[str], *, given: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; return what it prints. Raises :class:`Differs` if its exit code is not 0."""
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise Differs(f"{Path(command[0]).name}: expected exit code 0, found {done.returncode}: {said}")
    return done.stdout


def ran(command: Sequence[str], given: Mapping[str, str], log: Path, folder: Path, timeout_s: float) -> int:
    """Run a program to its end in a folder, with further environment variables and its output in a file; return its
    exit code, -9 if it took too long."""
    with log.open("wb") as out:
        try:
            return subprocess.run(
                command, env={**os.environ, **given}, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                timeout=timeout_s,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return -9


@contextmanager
def started(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program beside us, its output in a file; at the end it is terminated, and killed if it stays."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOPS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def application(stack: ExitStack, command: Sequence[str], log: Path, ready: str) -> subprocess.Popen[bytes]:
    """Run a program until the stack ends; return once it has said ``ready`` in its log, which it may share with one
    before it."""
    log.touch()
    before = log.read_text().count(ready)
    process = stack.enter_context(started(command, log))
    until(f"{ready!r} in {log}", lambda: log.read_text().count(ready) > before, process)
    return process


def rest(port: int, path: str, body: Mapping[str, object] | None = None, method: str | None = None) -> tuple[int, Any]:
    """Return the status and the answer of a program's REST interface; status 0 while it does not answer. ``method``:
    by default POST with a body, GET without one."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, None


def produce(bootstrap: str, lines: Sequence[str]) -> None:
    """Produce texts into the topic ``lines``, each under another key."""
    with Producer(bootstrap) as producer:
        for number, line in enumerate(lines):
            producer.send("lines", line.encode(), key=str(number).encode())
        producer.flush(WAIT_S)


def until(
    what: str,
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes] | None = None,
    within_s: float = WAIT_S,
) -> None:
    """Wait until the condition holds. Raises :class:`Differs` if the process ends meanwhile, ``WatchFailed`` in the
    end."""

    def holds() -> bool:
        if process is not None and process.poll() is not None:
            raise Differs(f"expected {what}, but the program ended with {process.returncode}")
        return condition()

    wait_until(what, holds, within_s)


def records(bootstrap: str, topic: str, security: SecuritySettings = NOT_SECURED) -> list[ConsumerRecord]:
    """Return every committed record of a topic, by partition and offset."""
    with Consumer(bootstrap, isolation_level="read_committed", **security) as consumer:
        places = [TopicPartition(topic, found.partition) for found in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        consumer.seek_to_beginning()
        found: list[ConsumerRecord] = []

        def whole() -> bool:
            found.extend(consumer.poll(1.0))
            return all(consumer.position(place) >= ends[place] for place in places)

        wait_until(f"all of {topic}", whole, WAIT_S)
    return sorted(found, key=lambda record: (record.partition, record.offset))
