"""``./dev ecosystem``: one line and an exit code for each outcome; judges that find what differs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.bench.ecosystem import __main__ as command
from tidelog.bench.ecosystem import installing
from tidelog.bench.ecosystem.check import Check, Differs, expect, output, records, started
from tidelog.bench.ecosystem.checks import CHECKS, client_suites, spark_token, verifiable
from tidelog.bench.ecosystem.installing import Missing
from tidelog.bench.kafka_side import spark
from tidelog.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]


def passes(root: Path) -> str:
    assert root.is_dir()
    return "it did"


def differs(_: Path) -> str:
    expect("records", 3, 2)
    raise AssertionError("unreachable")


def misses(_: Path) -> str:
    raise Missing("expected go on PATH")


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Check("good", "x 1", passes), Check("bad", "x 2", differs), Check("absent", "x 3", misses)]
    monkeypatch.setattr(command, "CHECKS", found)


@pytest.mark.parametrize(
    ("names", "code", "lines"),
    [
        (["good"], 0, ["PASS     good (x 1)"]),
        (["bad"], 1, ["FAIL     bad (x 2): records: expected 3, found 2"]),
        (["absent"], 2, ["NOT RUN  absent: expected go on PATH"]),
        (["good", "absent"], 2, ["PASS", "NOT RUN"]),
        (["all"], 1, ["PASS", "FAIL", "NOT RUN"]),
    ],
)
def test_each_outcome_has_its_line_and_code(
    names: list[str], code: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(names) == code
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(lines)
    assert all(line.startswith(wanted) for line, wanted in zip(said, lines, strict=True))


def test_a_program_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Missing, match="expected go on PATH, found none: install Go"):
        installing.go_program("franz_go")
    with pytest.raises(Missing, match="expected java on PATH"):
        installing.jars("spark-kafka", *spark.JARS)
    with pytest.raises(Missing, match="expected node on PATH"):
        installing.node_modules("kafkajs", "kafkajs@2.2.4")


def test_every_check_has_its_row_and_every_row_its_check() -> None:
    page = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(check.name for check in CHECKS)


def test_a_program_is_judged_by_its_exit_code_and_ended_at_the_end(tmp_path: Path) -> None:
    assert output([sys.executable, "-c", "print(input())"], given="said") == "said\n"
    with pytest.raises(Differs, match="expected exit code 0, found 3: why"):
        output([sys.executable, "-c", "import sys; sys.stderr.write('why'); sys.exit(3)"])
    with started([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log") as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_all_committed_records_of_a_topic_are_read() -> None:
    with Cluster(transport="grpc") as cluster:
        cluster.create_topic("orders", partitions=2)
        assert records(cluster.bootstrap, "orders") == []
        with cluster.producer(transactional_id="t") as producer:
            producer.init_transactions()
            for ends in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                for partition in (0, 1):
                    producer.send("orders", ends.__name__.encode(), partition=partition)
                ends()
        assert [record.value for record in records(cluster.bootstrap, "orders")] == [b"commit_transaction"] * 2


def test_a_secret_that_spark_wrote_is_found(tmp_path: Path) -> None:
    files = ("logs/plans", "logs/app/events_1", "checkpoint/offsets/0")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("subscribe eco-input")
    assert spark_token._written(tmp_path, [b"s3cret"]) == len(files)
    (tmp_path / files[1]).write_text("eco-input s3cret")
    with pytest.raises(Differs, match="expected no secret"):
        spark_token._written(tmp_path, [b"s3cret"])
    (tmp_path / files[1]).unlink()
    with pytest.raises(Differs, match=r"events_\*: expected the name of the topic"):
        spark_token._written(tmp_path, [b"s3cret"])


def member(log: Path, *events: tuple[str, int]) -> verifiable.Member:
    """Say when it was assigned partition 3 and when it gave it up."""
    lines = (
        {"name": f"partitions_{what}", "timestamp": at, "partitions": [{"topic": "t", "partition": 3}]}
        for what, at in events
    )
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"name": "partitions_as')
    return verifiable.Member(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]), log)


def test_two_members_that_have_a_partition_at_once_are_found(tmp_path: Path) -> None:
    first = member(tmp_path / "first", ("assigned", 10), ("revoked", 20))
    second = member(tmp_path / "second", ("assigned", 21))
    third = member(tmp_path / "third", ("assigned", 30))
    verifiable.judge([second, first])
    assert (first.has(), second.has()) == (set(), {3})
    with pytest.raises(Differs, match="partition 3: members 0 and 1 had it at once, from 30"):
        verifiable.judge([second, third])
    for each in (first, second, third):
        each.ends(signal.SIGKILL)
    assert second.has() == set()


SUITE = """--- PASS: TestA (0.00s)
--- FAIL: TestB (0.01s)
    --- PASS: TestB/one (0.00s)
    --- FAIL: TestB/two (0.00s)
        why: no such thing
--- SKIP: TestC (0.00s)
"""


def test_a_suite_in_go_is_judged_by_the_tests_that_fail_and_why() -> None:
    shown = client_suites._judged(SUITE, {"TestB/two": "no such thing"})
    assert shown == "2 tests passed, 1 skipped themselves, 1 failed for the known reasons"
    with pytest.raises(Differs, match="tests that failed: expected \\[\\], found \\['TestB/two'\\]"):
        client_suites._judged(SUITE, {})
    with pytest.raises(Differs, match="why they failed"):
        client_suites._judged(SUITE, {"TestB/two": "another thing"})
    with pytest.raises(Differs, match="the end of the suite"):
        client_suites._judged(SUITE + "panic: test timed out after 1s", {"TestB/two": "no such thing"})


def test_the_source_of_kafkajs_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAFKAJS_SOURCE", raising=False)
    with pytest.raises(Missing, match="KAFKAJS_SOURCE, the directory of kafkajs"):
        client_suites.KAFKAJS_TESTS.run(tmp_path)
