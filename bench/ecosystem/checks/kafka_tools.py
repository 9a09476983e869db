"""Kafka's own tools on a secured cluster: users, access control lists, topics, quotas, groups, delegation tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tidelog.bench.ecosystem import secured
from tidelog.bench.ecosystem.check import Check, Differs, expect, output
from tidelog.bench.ecosystem.checks.connect import VERSION
from tidelog.bench.ecosystem.installing import jars, java
from tidelog.bench.ecosystem.secured import ALICE, MALLORY, Secured

JARS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
)
ACLS: Final = "org.apache.kafka.tools.AclCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
ADMIN: Final = "admin"
BOB: Final = "bob"
BOBS_PASSWORD: Final = "made by kafka-configs"
TOPIC: Final = "orders"
RECORDS: Final = 100
NO_RIGHT: Final = "authorization ?(exception|failed)"
"""What tools say, in one way or another."""


def kafka_topics(script: Path, *, before: str = "") -> None:
    """Write the script of Kafka's tool for topics. ``before``: lines of shell that change its arguments."""
    command = " ".join(f"'{word}'" for word in (*java(jars("kafka-tools", *JARS)), TOPICS))
    script.write_text(f'#!/bin/sh\n{before}exec {command} "$@"\n')
    script.chmod(0o755)


class Tools:
    """Runs them, each as a user; counts the runs."""

    def __init__(self, root: Path, found: Secured) -> None:
        self._java = java(jars("kafka-tools", *JARS))
        self._bootstrap = found.cluster.kafka_bootstrap
        self._root = root
        self._authority = found.authority
        self.runs = 0
        self.user(ADMIN, found.cluster.client_settings(ADMIN)["sasl_password"] or "")
        for user, password in found.passwords.items():
            self.user(user, password)

    def user(self, name: str, password: str, *, token: bool = False) -> None:
        """Write the file that a tool logs in with."""
        (self._root / f"{name}.properties").write_text(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._authority}\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{name}" password="{password}"{" tokenauth=true" if token else ""};\n'
        )

    def __call__(self, user: str, tool: str, *arguments: str, given: str | None = None) -> str:
        self.runs += 1
        login = ("--command-config", str(self._root / f"{user}.properties"))
        return output([*self._java, tool, "--bootstrap-server", self._bootstrap, *login, *arguments], given=given)

    def refused(self, user: str, tool: str, *arguments: str, error: str) -> None:
        """Expect the tool to end with an error that this regular expression finds, or to say it."""
        try:
            said = self(user, tool, *arguments)
        except Differs as trouble:
            said = str(trouble)
        if not re.search(error, said, re.IGNORECASE):
            raise Differs(f"{tool} {' '.join(arguments)} as {user}: expected {error}, found {said[-500:]}")


def _run(root: Path) -> str:
    with secured.running(root) as found:
        tools = Tools(root, found)
        _users(tools)
        _topics(tools)
        _records(tools)
        _tokens(tools)
        return (
            f"{tools.runs} runs of kafka-configs, kafka-acls, kafka-topics, kafka-console-producer and -consumer, "
            "kafka-consumer-groups and kafka-delegation-tokens did what they do with Kafka, refusals included"
        )


def _users(tools: Tools) -> None:
    user = ("--entity-type", "users", "--entity-name", BOB)
    tools(ADMIN, CONFIGS, "--alter", *user, "--add-config", f"SCRAM-SHA-512=[password={BOBS_PASSWORD}]")
    tools.user(BOB, BOBS_PASSWORD)
    tools(ADMIN, CONFIGS, "--alter", *user, "--add-config", "consumer_byte_rate=1048576")
    said = tools(ADMIN, CONFIGS, "--describe", *user)
    expect("the user's credential and quota", True, ("SCRAM-SHA-512=iterations" in said and "1048576" in said) or said)
    tools.refused(MALLORY, CONFIGS, "--describe", *user, error=NO_RIGHT)


def _topics(tools: Tools) -> None:
    tools.refused(ALICE, TOPICS, "--create", "--topic", TOPIC, error=NO_RIGHT)
    tools(ADMIN, TOPICS, "--create", "--topic", TOPIC, "--partitions", "3", "--replication-factor", "3")
    for grant in (
        ("--producer", "--topic", TOPIC, "--allow-principal", f"User:{ALICE}"),
        ("--consumer", "--topic", TOPIC, "--group", "read", "--resource-pattern-type", "prefixed",
         "--allow-principal", f"User:{BOB}"),
        ("--operation", "DescribeConfigs", "--topic", TOPIC, "--allow-principal", f"User:{ALICE}"),
        ("--operation", "Read", "--topic", TOPIC, "--deny-principal", f"User:{MALLORY}"),
    ):  # fmt: skip
        tools(ADMIN, ACLS, "--add", *grant)
    said = tools(ADMIN, ACLS, "--list", "--topic", TOPIC)
    expect("the lists", (True, True), (f"User:{ALICE}" in said, "permissionType=DENY" in said))
    tools.refused(MALLORY, ACLS, "--list", error=NO_RIGHT)
    tools(ADMIN, TOPICS, "--alter", "--topic", TOPIC, "--partitions", "4")
    said = tools(ALICE, TOPICS, "--describe", "--topic", TOPIC)
    expect("partitions that alice sees", 4, len(re.findall(r"\tPartition: ", said)))
    expect("topics that mallory sees", "", tools(MALLORY, TOPICS, "--list").strip())


def _records(tools: Tools) -> None:
    lines = [f"order {number}" for number in range(RECORDS)]
    tools(ALICE, PRODUCER, "--topic", TOPIC, given="".join(f"{line}\n" for line in lines))
    read = ("--topic", TOPIC, "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "60000")
    expect("what bob reads", sorted(lines), sorted(tools(BOB, CONSUMER, *read, "--group", "readers").splitlines()))
    expect("what mallory reads", "", tools(MALLORY, CONSUMER, *read, "--group", "readers"))  # its log has the error
    said = tools(BOB, GROUPS, "--describe", "--group", "readers")
    lags = {line.split()[5] for line in said.splitlines() if line.startswith("readers ")}
    expect("lags of the group", {"0"}, lags)


def _tokens(tools: Tools) -> None:
    said = tools(ALICE, TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", f"User:{BOB}")
    row = next(line.split() for line in said.splitlines() if f"User:{ALICE}" in line)
    token, hmac = row[0], row[1]
    tools.user(token, hmac, token=True)
    tools(token, PRODUCER, "--topic", TOPIC, given="by token\n")
    tools.refused(token, TOKENS, "--create", "--max-life-time-period", "-1", error="requests? (is |are )?not ?allowed")
    tools(BOB, TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    said = tools(ALICE, TOKENS, "--describe", "--owner-principal", f"User:{ALICE}")
    expect("the token in the list", True, token in said)
    tools(ALICE, TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    tools.refused(token, TOPICS, "--list", error="authentication failed")


CHECK: Final = Check("kafka-tools", f"Apache Kafka's command-line tools {VERSION}", _run)
