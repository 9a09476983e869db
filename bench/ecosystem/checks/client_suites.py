"""The suites of clients in Go and JavaScript, as their authors wrote them, at the addresses where they look for Kafka.

Access control and logins are on where the suite's own environment has them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tidelog.bench.ecosystem.check import Check, Differs, expect, ran, rest, started, until
from tidelog.bench.ecosystem.checks import suite_clusters
from tidelog.bench.ecosystem.checks.small_clients import KAFKAJS
from tidelog.bench.ecosystem.checks.suite_clusters import ACCESS, SHA_256, SHA_512, Listener, User
from tidelog.bench.ecosystem.installing import Missing, go_command, go_module, go_tests, node_project
from tidelog.testing.ports import LOOPBACK, free_ports, taken

GO_TIMEOUT_S: Final = 1_500
ONLY: Final = "TESTS_ONLY"
"""The environment variable for a pattern: of the tests' names in Go, of their files in JavaScript; by default all."""
SARAMA_MODULE: Final = "github.com/IBM/sarama"
SARAMA: Final = "1.61.1"
SARAMA_NODES: Final = 5
SARAMA_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "2",
    "replica.selector.class": "RackAwareReplicaSelector",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "2",
}
"""As the suite's own environment has them."""
SARAMA_PORTS: Final = tuple(range(29_091, 29_091 + SARAMA_NODES))
"""Where the suite looks for the brokers, behind a proxy that it steers."""
TOXIPROXY: Final = ("github.com/Shopify/toxiproxy/v2/cmd/server", "2.12.0")
KAFKA_GO_MODULE: Final = "github.com/segmentio/kafka-go"
KAFKA_GO: Final = "0.4.51"
KAFKA_GO_PARTS: Final = (".", "compress", "sasl", "topics")
KAFKA_GO_SETTINGS: Final = {"message.max.bytes": "200000000", "socket.request.max.bytes": "300000000"}
KAFKA_GO_USERS: Final = (
    User("adminplain", "admin-secret"),
    User("adminscram256", "admin-secret-256", (SHA_256,)),
    User("adminscram512", "admin-secret-512", (SHA_512,)),
)
KAFKA_GO_SKIPPED: Final = (
    "^TestReaderConsumerGroup$/^(verify_offset_committed|verify_offset_committed_when_using_interval_committer|"
    "consumer_group_commits_on_close)$"
)
"""They end the whole suite: their helper ``getOffsets`` calls a function that it has not set."""
_SALTED: Final = "expected a salted password of 64 bytes, found 18"
KAFKA_GO_DIFFERS: Final = {
    "TestAlterUserScramCredentials": _SALTED,
    "TestDescribeUserScramCredentials": _SALTED,
    "TestConn/test_delete_topics": "exepected partitions to be empty",
    "TestConn/test_delete_topics_with_an_invalid_topic": "expected partitions to be empty",
    "TestReaderConsumerGroup/consumer_group_rebalance": "expect to read from reader",
    "TestReaderReadCompactedMessage": "[40] Invalid Configuration",
}
"""Tests that fail, each with a part of what it says; docs/ecosystem.md says why."""
KAFKAJS_SOURCE: Final = "KAFKAJS_SOURCE"
"""The environment variable for the directory of kafkajs's source, of which the package has no tests."""
KAFKAJS_NODES: Final = 3
KAFKAJS_PORTS: Final = range(9092, 9092 + 3 * KAFKAJS_NODES)
KAFKAJS_SETTINGS: Final = {
    "default.replication.factor": "2",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "2",
}
KAFKAJS_USERS: Final = (
    User("test", "testtest"),
    User("bob", "bobbob"),
    User("alice", "alicealice"),
    User("testscram", "testtestscram=256", (SHA_256,)),
    User("testscram", "testtestscram=512", (SHA_512,)),
)
KAFKAJS_KNOWS: Final = "2.4"
"""The newest version of Kafka that the suite knows."""
KAFKAJS_DIFFERS: Final = (
    "Admin alter broker configs",
    "Broker > Heartbeat request",
    "Broker > ListOffsets v0 request",
    "Broker > OffsetCommit request",
    "Broker > OffsetCommit request with metadata",
    "Broker > OffsetFetch request",
    "Broker > Produce Record batch request to a topic with max timestamp difference configured",
    "Broker > TxnOffsetCommit ignores invalid transaction fields",
    "Broker > describeConfigs request",
    "Broker > describeConfigs request without config names returns all config entries",
    "Consumer recovers from offset out of range",
    "Protocol > Requests > Produce > v2 request with gzip",
)
"""Tests that fail, some by chance: docs/ecosystem.md says why."""
JEST_TIMEOUT_S: Final = 2_400
_AS_KAFKA: Final = "4.0.0"
"""The version for which kafka-go's suite chooses users."""
_DECLARED: Final = re.compile(r"^func (Test\w+)\(t ", re.MULTILINE)
_OUTCOME: Final = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)


def _sarama(root: Path) -> str:
    server = go_command(*TOXIPROXY)
    tests = go_tests(SARAMA_MODULE, SARAMA, ".", tags="functional")
    source = go_module(SARAMA_MODULE, SARAMA)
    found = (path.read_text() for path in sorted(source.glob("functional_*test.go")))
    pattern = f"^({'|'.join(name for text in found for name in _DECLARED.findall(text))})$"
    if busy := taken(SARAMA_PORTS):
        raise Missing(f"expected port {busy[0]} of {LOOPBACK} to be free, as this suite uses it, found it taken")
    api, *ports = free_ports(1 + SARAMA_NODES)
    nodes = [{"PROXIED": Listener("PLAINTEXT", port, told)} for port, told in zip(ports, SARAMA_PORTS, strict=True)]
    with ExitStack() as stack:
        proxy = stack.enter_context(started([str(server), "-port", str(api)], root / "toxiproxy.log"))
        until("toxiproxy", lambda: rest(api, "/proxies")[0] == HTTPStatus.OK, proxy)
        for number, (port, told) in enumerate(zip(ports, SARAMA_PORTS, strict=True), 1):
            route = {"name": f"kafka{number}", "listen": f"{LOOPBACK}:{told}", "upstream": f"{LOOPBACK}:{port}"}
            expect("a new proxy", HTTPStatus.CREATED, rest(api, "/proxies", {**route, "enabled": True})[0])
        cluster = stack.enter_context(suite_clusters.running(root, nodes, SARAMA_SETTINGS, racks=True))
        given = suite_clusters.with_docker(root, cluster)
        given |= {"TOXIPROXY_ADDR": f"http://{LOOPBACK}:{api}", "KAFKA_VERSION": "4.3.1"}
        limits = (f"-test.run={os.environ.get(ONLY) or pattern}", f"-test.timeout={GO_TIMEOUT_S}s")
        log = root / "sarama.log"
        ran([str(tests), "-test.v", *limits], given, log, source, GO_TIMEOUT_S)
    return _judged(log.read_text(errors="replace"), {})


def _kafka_go(root: Path) -> str:
    tests = {part: go_tests(KAFKA_GO_MODULE, KAFKA_GO, part) for part in KAFKA_GO_PARTS}
    source = go_module(KAFKA_GO_MODULE, KAFKA_GO)
    nodes = [{"PLAIN": Listener("PLAINTEXT", 9092), "SASL": Listener("SASL_PLAINTEXT", 9093)}]
    said = []
    with suite_clusters.running(root, nodes, ACCESS | KAFKA_GO_SETTINGS, KAFKA_GO_USERS):
        given = {"KAFKA_VERSION": _AS_KAFKA, "KAFKA_SKIP_NETTEST": "1"}
        for part, binary in tests.items():
            log = root / f"kafka-go-{part.strip('.')}.log"
            chosen = (f"-test.run={os.environ.get(ONLY) or ''}", f"-test.skip={KAFKA_GO_SKIPPED}")
            command = [str(binary), "-test.v", f"-test.timeout={GO_TIMEOUT_S}s", *chosen]
            ran(command, given, log, source / part, GO_TIMEOUT_S)
            said.append(log.read_text(errors="replace"))
    return _judged("\n".join(said), KAFKA_GO_DIFFERS)


def _kafkajs(root: Path) -> str:
    source = Path(os.environ.get(KAFKAJS_SOURCE) or "")
    if not os.environ.get(KAFKAJS_SOURCE) or not (source / "testHelpers").is_dir():
        raise Missing(f"expected ${KAFKAJS_SOURCE}, the directory of kafkajs {KAFKAJS}'s source, found none")
    expect(f"the version of {source}", KAFKAJS, json.loads((source / "package.json").read_text())["version"])
    modules = node_project("kafkajs-tests", source, ("package.json", "yarn.lock"))
    copy, results = root / "kafkajs", root / "results.json"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("node_modules", "website", ".git"))
    (copy / "node_modules").symlink_to(modules)
    listeners = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "SASL": "SASL_SSL"}
    ports = iter(KAFKAJS_PORTS)
    nodes = [{name: Listener(how, next(ports)) for name, how in listeners.items()} for _ in range(KAFKAJS_NODES)]
    with suite_clusters.running(root, nodes, ACCESS | KAFKAJS_SETTINGS, KAFKAJS_USERS, first=0) as cluster:
        given = suite_clusters.with_docker(root, cluster)
        given |= {"KAFKA_VERSION": KAFKAJS_KNOWS, "NODE_ENV": "test", "KAFKAJS_DEBUG_PROTOCOL_BUFFERS": "1"}
        given["TEST_RETRIES"] = "2"  # as the suite itself offers: some waits are short
        command = [str(modules / ".bin" / "jest"), "--ci", "--runInBand", "--forceExit", "--json"]
        chosen = (os.environ.get(ONLY) or "",)
        log = root / "kafkajs.log"
        ran([*command, f"--outputFile={results}", *filter(None, chosen)], given, log, copy, JEST_TIMEOUT_S)
    if not results.exists():
        raise Differs(f"expected the results of jest, found none: {log.read_text(errors='replace')[-1500:]}")
    found = [test for suite in json.loads(results.read_text())["testResults"] for test in suite["assertionResults"]]
    failed = sorted(test["fullName"] for test in found if test["status"] == "failed")
    expect("tests that failed for an unknown reason", [], [name for name in failed if name not in KAFKAJS_DIFFERS])
    passed = sum(test["status"] == "passed" for test in found)
    expect("tests that passed", True, passed > 0)
    skipped = sum(test["status"] == "pending" for test in found)
    return f"{passed} tests passed, {skipped} skipped themselves, {len(failed)} failed for the known reasons"


def _judged(said: str, known: Mapping[str, str]) -> str:
    """Return what came of a suite in Go. ``known``: tests that fail, each with the reason that the suite says."""
    outcomes = {name: how for how, name in _OUTCOME.findall(said)}
    names = {how: [name for name, found in outcomes.items() if found == how] for how in ("PASS", "FAIL", "SKIP")}
    leaves = [name for name in names["FAIL"] if not any(other.startswith(f"{name}/") for other in names["FAIL"])]
    expect("tests that failed", sorted(known), sorted(leaves))
    expect("why they failed", [], [why for why in known.values() if why not in said])
    expect("the end of the suite", False, "panic: test timed out" in said)
    expect("tests that passed", True, bool(names["PASS"]))
    shown = f"{len(names['PASS'])} tests passed, {len(names['SKIP'])} skipped themselves"
    return shown + (f", {len(leaves)} failed for the known reasons" if leaves else "")


SARAMA_TESTS: Final = Check("sarama-tests", f"sarama {SARAMA}'s functional tests", _sarama)
KAFKA_GO_TESTS: Final = Check("kafka-go-tests", f"kafka-go {KAFKA_GO}'s tests", _kafka_go)
KAFKAJS_TESTS: Final = Check("kafkajs-tests", f"kafkajs {KAFKAJS}'s tests", _kafkajs)
