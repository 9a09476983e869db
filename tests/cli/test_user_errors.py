"""What users do wrong, or interrupt: one line on stderr, the right exit code, and no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidelog.testing import Cluster

Tidelog = Callable[..., subprocess.CompletedProcess[bytes]]

COMMAND = [sys.executable, "-P", "-m", "tidelog.cli.main"]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(nodes=1, transport="grpc") as cluster:
        cluster.create_topic("lines", partitions=1)
        yield cluster.bootstrap


@pytest.fixture
def tidelog(bootstrap: str) -> Tidelog:
    """Runs the command as a process; ``stdin`` are bytes, ``shell`` redirections of standard streams."""

    def call(*arguments: str | bytes, stdin: bytes = b"", shell: str = "") -> subprocess.CompletedProcess[bytes]:
        command: list[str | bytes] = [*COMMAND, *arguments]
        if shell:
            command = ["sh", "-c", f'"$@" {shell}', "sh", *command]
        environment = {**os.environ, "TIDELOG_BOOTSTRAP": bootstrap}
        return subprocess.run(command, input=stdin, capture_output=True, timeout=240, env=environment)

    return call


def one_line(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    text = done.stderr.decode()
    assert (done.returncode, text.count("\n")) == (code, 1), text
    assert text.startswith("tidelog: ")
    return text


@pytest.mark.parametrize("arguments", [(), ("cluster",), ("topics",)])
def test_a_command_without_a_sub_command_shows_its_help(tidelog: Tidelog, arguments: tuple[str, ...]) -> None:
    done = tidelog(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(b"Usage: tidelog")
    assert b"\nCommands:\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ((), b"fits\n" + b"x" * 2_000_000 + b"\n", ("line 2: MESSAGE_TOO_LARGE", "sent before it: 1, acknowledged: 1")),
        (("--partition", "7"), b"a\n", ("line 1: partition: expected 0 to 0", "found 7")),
        (("--json-lines",), b'{"partition":99999999999}\n', ("line 1: partition: expected 0 to 2147483647",)),
        (("--json-lines",), b'{"timestamp":9223372036854775808}\n', ("line 1: timestamp: expected 0 to 9223372036",)),
        (("--json-lines",), b'{"value":{"base64":1}}\n', ("line 1: value: expected base64 as a string, found 1",)),
        (("--json-lines",), b'{"headers":[["\\ud800","x"]]}\n', ("line 1: ", "surrogates not allowed")),
        (("--json-lines",), b"[" * 100_000, ("line 1: expected a JSON object", "recursion")),
    ],
)
def test_a_line_that_cannot_be_sent_is_named_with_what_became_of_those_before(
    tidelog: Tidelog, arguments: tuple[str, ...], stdin: bytes, words: tuple[str, ...]
) -> None:
    text = one_line(tidelog("produce", "lines", *arguments, stdin=stdin), 1)
    for word in words:
        assert word in text


def test_a_wrong_line_leaves_the_counts_to_programs(tidelog: Tidelog) -> None:
    done = tidelog("produce", "lines", "--key-separator", ":", "--json", stdin=b"k:v\nbad\n")
    assert json.loads(done.stdout) == {"sent": 1, "acknowledged": 1, "failed": 0}
    assert "line 2: expected KEY:VALUE, found 'bad'" in one_line(done, 1)


def test_arguments_that_are_not_utf_8(tidelog: Tidelog) -> None:
    assert "expected UTF-8, found" in one_line(tidelog("topics", "create", b"\xff"), 2)
    assert "expected UTF-8, found" in one_line(tidelog("produce", "lines", "--header", b"a=\xff"), 2)
    assert "expected a topic name of ASCII" in one_line(tidelog("produce", b"\xff", stdin=b"a\n"), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topics", "create", "x", "--partitions", "99999999999"), "--partitions"),
        (("topics", "create", "x", "--replicas", "99999999999"), "--replicas"),
        (("topics", "create", "x", "--assign", "99999999999"), "--assign"),
        (("topics", "alter", "lines", "--partitions", "99999999999"), "--partitions"),
        (("topics", "delete-records", "lines", "--before", "9" * 20), "--before"),
        (("consume", "lines", "--offset", "9" * 20), "--offset"),
        (("consume", "lines", "--from-time", "9" * 20), "--from-time"),
        (("consume", "lines", "--from-time", "0001-01-01T00:00:00Z"), "--from-time"),
        (("consume", "lines", "--timeout", "nan"), "--timeout"),
        (("consume", "lines", "--set", "bootstrap_servers=x"), "use --bootstrap"),
        (("produce", "lines", "--set", "bootstrap.servers=x"), "use --bootstrap"),
        (("perf", "produce", "lines", "--seconds", "nan"), "--seconds"),
        (("perf", "produce", "lines", "--size", "99999999999"), "--size"),
        (("perf", "consume", "lines", "--set", "auto_offset_reset=latest"), "reading begins at the first record"),
    ],
)
def test_numbers_and_settings_out_of_range_are_wrong_usage(
    tidelog: Tidelog, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(tidelog(*arguments), 2)


def test_measuring_makes_no_topic_of_a_typo(tidelog: Tidelog) -> None:
    assert "topic 'typo' does not exist" in one_line(tidelog("perf", "produce", "typo"), 1)
    assert "topic 'typo' does not exist" in one_line(tidelog("perf", "latency", "typo"), 1)
    assert b"typo" not in tidelog("topics", "list").stdout


def test_large_values_one_by_one_are_not_all_held_in_memory() -> None:
    from tidelog.cli.work import workload

    assert workload.ONE_BY_ONE_BYTES_MAX <= 100_000_000


def test_what_was_deleted_is_told_beside_what_was_not(tidelog: Tidelog) -> None:
    assert tidelog("topics", "create", "t-gone").returncode == 0
    done = tidelog("topics", "delete", "nowhere", "t-gone", "t-gone")
    assert done.stdout == b"deleted t-gone\n"
    assert "UNKNOWN_TOPIC_OR_PARTITION: nowhere" in one_line(done, 1)


def test_closed_standard_streams(tidelog: Tidelog) -> None:
    done = tidelog("produce", "lines", shell="<&-")
    assert (done.returncode, done.stderr) == (0, b"0 of 0 records acknowledged\n")
    for arguments in (("topics", "list"), ("consume", "lines", "--from-beginning", "--until-end")):
        done = tidelog(*arguments, shell=">&-")
        assert (done.returncode, done.stderr) == (0, b"")
    done = tidelog("produce", "lines", stdin=b"x\n", shell="2>&-")
    assert done.returncode == 0
    assert one_line(tidelog("topics", "describe", "nowhere", shell=">&-"), 1)


@pytest.mark.parametrize("arguments", ["--help", "topics --help", "configs describe --broker 1", "topics list --json"])
def test_a_reader_that_goes_away_is_no_failure(tidelog: Tidelog, arguments: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        environment = dict(os.environ)
        done = subprocess.run(
            [*COMMAND, *arguments.split()],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=240,
            env={**environment, "TIDELOG_BOOTSTRAP": tidelog_bootstrap(tidelog)},
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def tidelog_bootstrap(call: Tidelog) -> str:
    found = json.loads(call("cluster", "describe", "--json").stdout)
    (listener,) = [one for one in found["brokers"][0]["listeners"] if one.startswith("CLIENT")]
    return str(listener).removeprefix("CLIENT://")


def test_output_in_another_encoding_than_utf_8(tidelog: Tidelog, bootstrap: str) -> None:
    assert tidelog("produce", "lines", stdin="zwölf\n".encode()).returncode == 0
    done = subprocess.run(
        [*COMMAND, "consume", "lines", "--last", "1", "--until-end", "--json"],
        capture_output=True,
        timeout=240,
        env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert rb"zw\xf6lf" in done.stdout


def test_tables_have_no_blanks_at_the_end_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.terminal.output import print_rows

    print_rows(("pid", "name", "memory"), [("12345", "a", "60.8 MB"), ("-", "bb", "-")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["12345   a      60.8 MB", "    -   bb           -"]
    assert all(line == line.rstrip() for line in lines)


def test_what_was_acknowledged_is_told_when_produce_is_interrupted(
    bootstrap: str, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    with subprocess.Popen(
        interruptible([*COMMAND, "produce", "interrupted", "--set", "linger_ms=0", "--bootstrap", bootstrap]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_for_end_offset(bootstrap, "interrupted", 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        _, err = process.communicate()
    assert err == b"interrupted: 2 of 2 records acknowledged\n"


def wait_for_end_offset(bootstrap: str, topic: str, offset: int) -> None:
    from tidelog import Consumer, TopicPartition

    deadline = time.monotonic() + 30
    with Consumer(bootstrap) as consumer:
        consumer.partitions_for(topic, 30)
        at = TopicPartition(topic, 0)
        while consumer.end_offsets([at])[at] < offset:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_times_that_no_calendar_has_are_printed_as_numbers() -> None:
    from tidelog.cli.terminal.records import time_text

    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text((1 << 63) - 1) == "9223372036854775807 ms"
    assert time_text(-1) == "no time"


def test_a_file_in_the_way_is_named_without_errno(tidelog: Tidelog, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = one_line(tidelog("cluster", "start", "--dir", str(tmp_path / "file" / "inside")), 1)
    assert text == f"tidelog: {tmp_path}/file/inside: Not a directory\n"
