"""Names with line breaks and terminal sequences in them: what the log of a node and the tables of commands show."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer

from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cli.local.cluster import LocalCluster

from .in_process import Tidelog, as_json, runs_commands

FORGED = "a\n2026-01-01 00:00:00,000 CRITICAL tidelog: the disk is gone\x1b[2J\x9b31m\u202e\u2028z"
CLIENT = "\x1b]0;owned\x07client\n\x7f"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +[\w.]+: |    ")
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A process of its own, with a log file, that has had members of strange names through both listeners."""
    found = LocalCluster.create(tmp_path_factory.mktemp("strange") / "cluster", nodes=1)
    found.start()
    try:
        found.wait_ready()
        with Admin(found.bootstrap) as admin:
            admin.create_topics([NewTopic("lines", 1)])
        with Producer(found.bootstrap) as producer:
            producer.send_and_wait(
                "lines", b"one\x1b[2J\ntwo\xff", key="k\u202e".encode(), headers=[("h\n\x1b", b"\x07")]
            )
        with Consumer(found.bootstrap, group_id=FORGED, client_id=CLIENT, auto_offset_reset="earliest") as member:
            member.subscribe(["lines"])
            while not member.poll(timeout=1.0):
                pass
            member.commit()
        settings = {"bootstrap.servers": found.bootstrap, "group.id": f"k{FORGED}", "client.id": CLIENT}
        kafka = KafkaConsumer({**settings, "auto.offset.reset": "earliest"})
        kafka.subscribe(["lines"])
        while kafka.poll(1.0) is None:
            pass
        kafka.commit(asynchronous=False)
        kafka.close()
        yield found
    finally:
        found.kill(1)


@pytest.fixture
def tidelog(cluster: LocalCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def test_a_name_never_begins_a_line_of_the_log(cluster: LocalCluster) -> None:
    text = cluster.node(1).log_path.read_text(encoding="utf-8")
    assert r"group a\n2026-01-01 00:00:00,000 CRITICAL tidelog: the disk is gone\x1b[2J\x9b31m\u202e\u2028z" in text
    assert r"group ka\n2026" in text
    assert not _UNSAFE.findall(text)
    assert [line for line in text.split("\n") if line and not _LINE.match(line)] == []


def test_a_traceback_is_indented_whatever_its_error_says(tmp_path: Path) -> None:
    program = (
        "import logging, sys; from pathlib import Path; from tidelog.cli.commands.nodes.server import _start_logging\n"
        "_start_logging(Path(sys.argv[1]), 'info')\n"
        "try: raise ValueError(sys.argv[2])\n"
        "except ValueError: logging.getLogger('x').exception('wrong: %s', sys.argv[2], stack_info=True)\n"
    )
    log = tmp_path / "server.log"
    subprocess.run([sys.executable, "-P", "-c", program, str(log), FORGED], check=True, timeout=240)
    text = log.read_text(encoding="utf-8")
    assert "ValueError: a\n    2026-01-01" in text
    assert not _UNSAFE.findall(text)
    assert [line for line in text.split("\n") if line and not _LINE.match(line)] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "list"),
        ("groups", "describe", FORGED),
        ("groups", "describe", f"k{FORGED}", "--state"),
        ("groups", "delete", "absent\n\x1b[2J"),
        ("topics", "describe", "absent\n\x1b[2J"),
        ("consume", "lines", "--from-beginning", "--max", "1", "--details"),
    ],
)
def test_tables_and_messages_show_names_as_escapes(tidelog: Tidelog, arguments: tuple[str, ...]) -> None:
    _, out, err = tidelog(*arguments)
    assert "\\x1b" in out + err
    assert not _UNSAFE.findall(out + err)
    assert "\n2026" not in out


def test_json_keeps_the_name_and_escapes_it(tidelog: Tidelog) -> None:
    result = tidelog("groups", "list", "--json")
    assert not _UNSAFE.findall(result[1])
    assert {FORGED, f"k{FORGED}"} <= {row["group"] for row in as_json(result)}
    record = tidelog("consume", "lines", "--from-beginning", "--max", "1", "--json")
    assert not _UNSAFE.findall(record[1])
    assert json.loads(record[1])["key"] == "k\u202e"


def test_values_are_raw_in_a_pipe_and_escaped_on_a_terminal(cluster: LocalCluster) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "consume", "lines", "--from-beginning", "--max", "1"]
    command += ["--keys", "--bootstrap", cluster.bootstrap]
    piped = subprocess.run(command, capture_output=True, timeout=240, check=True)
    assert piped.stdout == "k\u202e\tone\x1b[2J\ntwo".encode() + b"\xff\n"
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, stdout=theirs, stdin=subprocess.DEVNULL, timeout=240, check=True)
        shown = os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown == b"k\\u202e\tone\\x1b[2J\r\ntwo\\xff\r\n"
