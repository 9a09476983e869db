"""Test suites of foreign clients, as their authors wrote them, under the consumer protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import Check, Differs, expect, ran
from tidelog.bench.ecosystem.checks.connect import VERSION as KAFKA
from tidelog.bench.ecosystem.checks.kafka_tools import kafka_topics
from tidelog.bench.ecosystem.installing import Missing, go_tests, python_with

NODES: Final = 3
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.partitions": "4",
}
"""As these suites expect of a broker."""

FRANZ_GO: Final = "1.21.5"
GO_TESTS: Final = "^(TestGroupSimple|TestGroupETL|TestTxnEtl)$"
GO_RECORDS: Final = 5_000
GO_TIMEOUT_S: Final = 1_200

LIBRDKAFKA: Final = "2.15.0"
RUNNER: Final = "LIBRDKAFKA_TESTS"
"""The environment variable for the directory of librdkafka's built tests: no package has them."""
C_TESTS: Final = "LIBRDKAFKA_ONLY"
"""The environment variable for the beginnings of the tests' names, by default all."""
C_TIMEOUT_S: Final = 400
DECLARED: Final = re.compile(r"^ {4}_TEST\((\w+),(.*?)(?=^ {4}_TEST\(|^};)", re.MULTILINE | re.DOTALL)
NOT_HERE: Final = re.compile(
    r"share|_mock|_idle|0000|0081_|0028_long|0047_|0092_|0097_|0109_|0115_|0119_|0126_|0135_|0142_|_LOCAL|_MANUAL"
)
"""Tests without a broker, of share groups, switched off in the suite, for older Kafka, and for clusters with access
control."""
BY_CHANCE: Final = {"0118_commit_rebalance"}
"""Passes only if the first of two members is the first to be heard; so it is with Apache Kafka 4.3.1 too."""
CONFLUENT: Final = "2.15.0"
CONFLUENT_TESTS: Final = "CONFLUENT_KAFKA_TESTS"
"""The environment variable for the directory of confluent-kafka-python's source, of which the package has no tests."""
CONFLUENT_NEEDS: Final = (
    f"confluent-kafka[avro,json,protobuf,schemaregistry,rules]=={CONFLUENT}",
    *("pytest", "pytest-timeout", "pytest-asyncio", "async-timeout", "requests-mock", "respx", "trivup"),
)
CONFLUENT_PARTS: Final = ("admin", "consumer", "producer")
CONFLUENT_TIMEOUT_S: Final = 900
OWN_BROKER: Final = "tests/integration/admin/test_describe_operations.py"
"""Starts a broker that it downloads."""
CONFLUENT_DIFFERS: Final = {
    "tests/integration/admin/test_basic_operations.py::test_basic_operations": "SECURITY_DISABLED",
    "tests/integration/admin/test_incremental_alter_configs.py::test_incremental_alter_configs": "min.insync.replicas",
}
"""Tests that fail, and why: the first ends with access control lists, which this cluster has not. The second expects a
setting that Kafka's controllers write for the whole cluster (KIP-966)."""
NO_TOPICS: Final = "noautocreate"
"""The scenario of tests that need ``auto.create.topics.enable=false``."""


def _franz_go(root: Path) -> str:
    tests = go_tests("github.com/twmb/franz-go", FRANZ_GO, "pkg/kgo")
    with clusters.running(root, 1, SETTINGS) as cluster:
        given = {"KGO_SEEDS": cluster.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(GO_RECORDS)}
        limits = ("-test.parallel=1", f"-test.timeout={GO_TIMEOUT_S}s")
        command = [str(tests), "-test.v", f"-test.run={GO_TESTS}", *limits]
        done = ran(command, given, root / "franz-go.log", root, GO_TIMEOUT_S)
        said = (root / "franz-go.log").read_text()
    ended = {kind: re.findall(rf"--- {kind}: (\S+)", said) for kind in ("PASS", "FAIL", "SKIP")}
    expect(f"the end, with what failed: {ended['FAIL']}", 0, done)
    newer = [name for name in ended["PASS"] if "/848" in name]
    expect("tests of the consumer protocol that were left out", [], [each for each in ended["SKIP"] if "/848" in each])
    expect("tests of the consumer protocol that passed", True, bool(newer))
    return f"{len(ended['PASS'])} tests of groups and transactions passed, {len(newer)} of them under the new protocol"


def _librdkafka(root: Path) -> str:
    directory = Path(os.environ.get(RUNNER) or "")
    runner = directory / "test-runner"
    if not os.environ.get(RUNNER) or not runner.exists():
        raise Missing(
            f"expected ${RUNNER}, the directory of librdkafka {LIBRDKAFKA}'s built tests, found none: build them as "
            "its tests/README.md says"
        )
    only = tuple((os.environ.get(C_TESTS) or "0").split(","))
    wanted = {
        name: NO_TOPICS if NO_TOPICS in flags else "default"
        for name, flags in DECLARED.findall((directory / "test.c").read_text())
        if name.startswith(only) and not NOT_HERE.search(name + flags)
    }
    passed: list[str] = []
    other: dict[str, str] = {}
    for scenario in sorted(set(wanted.values())):
        create = str(scenario != NO_TOPICS).lower()
        with _tools(root / scenario) as tools:
            settings = SETTINGS | {"auto.create.topics.enable": create}
            with clusters.running(root / scenario, NODES, settings) as cluster:
                (tools / "test.conf").write_text(f"bootstrap.servers={cluster.bootstrap}\n")
                for name in (each for each, where in wanted.items() if where == scenario):
                    given = {
                        "TESTS": name,
                        "RDKAFKA_TEST_CONF": str(tools / "test.conf"),
                        "BROKERS": cluster.bootstrap,
                        "KAFKA_PATH": str(tools),
                        "TEST_KAFKA_VERSION": f"{KAFKA}.0",
                        "TEST_SCENARIO": scenario,
                        "TEST_CONSUMER_GROUP_PROTOCOL": "consumer",
                    }
                    log = root / f"{name}.log"
                    code = ran([str(runner), "-p1", "-Q"], given, log, directory, C_TIMEOUT_S)
                    outcome = _outcome(name, log.read_text(errors="replace")) if code == 0 else f"exit code {code}"
                    if outcome == "PASSED":
                        passed.append(name)
                    else:
                        other[name] = outcome
                    print(f"{name} {outcome}", flush=True)
    failed = {name: outcome for name, outcome in other.items() if outcome != "SKIPPED"}
    if failed.keys() - BY_CHANCE:
        raise Differs(f"expected no failures, found {failed}; {len(passed)} passed, {len(other) - len(failed)} skipped")
    skipped = ", ".join(sorted(other.keys() - failed.keys())) or "none"
    chance = f"; failed by chance: {', '.join(failed)}" if failed else ""
    return f"{len(passed)} tests passed with group.protocol=consumer; skipped themselves: {skipped}{chance}"


def _confluent(root: Path) -> str:
    directory = Path(os.environ.get(CONFLUENT_TESTS) or "")
    if not os.environ.get(CONFLUENT_TESTS) or not (directory / "tests" / "integration").is_dir():
        raise Missing(f"expected ${CONFLUENT_TESTS}, the directory of confluent-kafka-python {CONFLUENT}, found none")
    python = python_with("confluent-kafka-tests", *CONFLUENT_NEEDS)
    with clusters.running(root, 1, SETTINGS) as cluster:
        given = {"BROKERS": cluster.bootstrap, "TEST_CONSUMER_GROUP_PROTOCOL": "consumer"}
        parts = [f"tests/integration/{part}" for part in CONFLUENT_PARTS]
        options = ("-v", "-p", "no:cacheprovider", "--timeout=120", f"--ignore={OWN_BROKER}")
        command = [python, "-m", "pytest", *options, *parts]
        log = root / "confluent-kafka.log"
        ran(command, given, log, directory, CONFLUENT_TIMEOUT_S)
    text = log.read_text()
    said = re.findall(r"^(tests/\S+) (PASSED|FAILED|ERROR|SKIPPED)", text, re.MULTILINE)
    ended = {kind: [name for name, how in said if how == kind] for kind in ("PASSED", "FAILED", "ERROR", "SKIPPED")}
    expect("tests that failed", sorted(CONFLUENT_DIFFERS), sorted([*ended["FAILED"], *ended["ERROR"]]))
    reasons = "\n".join(re.findall(r"^E .*", text, re.MULTILINE))
    expect("why they failed", [], [why for why in CONFLUENT_DIFFERS.values() if why not in reasons])
    expect("tests that passed", True, bool(ended["PASSED"]))
    return (
        f"{len(ended['PASSED'])} tests passed with group.protocol=consumer, {len(ended['SKIPPED'])} skipped "
        f"themselves, {len(CONFLUENT_DIFFERS)} failed for the known reasons"
    )


def _outcome(name: str, said: str) -> str:
    """Return what the suite's summary says."""
    found = re.search(rf"\| *(?:\x1b\[[0-9;]*m)? *{name} *\| *(\w+)", said)
    return "SKIPPED" if found is None else found[1]


@contextmanager
def _tools(root: Path) -> Iterator[Path]:
    """Yield a directory with the one script of Kafka's that the suite calls."""
    root.mkdir()
    (root / "bin").mkdir()
    kafka_topics(root / "bin" / "kafka-topics.sh")
    yield root


FRANZ_GO_TESTS: Final = Check("franz-go-tests", f"franz-go {FRANZ_GO}'s tests of groups", _franz_go)
LIBRDKAFKA_TESTS: Final = Check("librdkafka-tests", f"librdkafka {LIBRDKAFKA}'s tests in C and C++", _librdkafka)
CONFLUENT_KAFKA_TESTS: Final = Check("confluent-kafka-tests", f"confluent-kafka-python {CONFLUENT}'s tests", _confluent)
