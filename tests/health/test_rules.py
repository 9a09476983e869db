"""Every rule finds what it is for, and nothing on a healthy cluster. Commands that it names exist."""

from __future__ import annotations

import re
from dataclasses import replace

import click
import pytest

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import (
    Broker,
    Directory,
    Facts,
    Feature,
    Group,
    GroupPartition,
    HangingTransaction,
    Link,
    LinkPartition,
    NodeMetrics,
    OpenTransaction,
    Partition,
    Progress,
)
from tidelog.broker.health.rule import Severity
from tidelog.broker.health.rules import RULES, report
from tidelog.broker.metrics import MetricName
from tidelog.cli.root import tree
from tidelog.model.ids import TopicPartition

NOW_MS = 1_800_000_000_000
AT = TopicPartition("t", 0)


def metrics(node: int, *given: tuple[MetricName, float], **more: float) -> NodeMetrics:
    values: dict[str, dict[tuple[str, ...], float]] = {
        metric.exported: {tuple("x" for _ in metric.labels): value} for metric, value in given
    }
    return NodeMetrics(node, values, **more)


def partition(**changes: object) -> Partition:
    return replace(Partition(AT, 1, (1, 2, 3), (1, 2, 3), min_isr=2), **changes)  # type: ignore[arg-type]


HEALTHY = Facts(
    NOW_MS,
    controller=1,
    voters=(1, 2, 3),
    brokers={node: Broker(node, fenced=False) for node in (1, 2, 3)},
    partitions=(partition(),),
    directories=(Directory(1, "/d", failed=False, total_bytes=100, free_bytes=50),),
    features=(Feature("metadata.version", 2, 1, 2),),
    prepared=(OpenTransaction("x", NOW_MS - 1_000),),
    hanging=(),
    groups=(Group("g", True, (GroupPartition(AT, Progress.UNSETTLED, 5),)),),
    links=(Link("dr", (LinkPartition(AT, 7, 59_000, 3_000),)),),
    nodes={
        node: metrics(node, (m.UNCLEAN_ELECTIONS, 0), busy=0.2, clock_ahead_s=0.1 * node, clock_error_s=0.01)
        for node in (1, 2, 3)
    },
)


def nodes(*changed: NodeMetrics) -> Facts:
    return replace(HEALTHY, nodes={**(HEALTHY.nodes or {}), **{one.node: one for one in changed}})


def brokers(*, fenced: bool = False, stopping: bool = False) -> Facts:
    return replace(HEALTHY, brokers={**(HEALTHY.brokers or {}), 3: Broker(3, fenced, stopping)})


def partitions(**changes: object) -> Facts:
    return replace(HEALTHY, partitions=(partition(**changes),))


def group(progress: Progress, *, members: bool = True, lost: int = 0) -> Facts:
    return replace(HEALTHY, groups=(Group("g", members, (GroupPartition(AT, progress, 5, lost, NOW_MS - 1),)),))


def groups_of(count: int, progress: Progress, *, lost: int = 0) -> Facts:
    place = GroupPartition(AT, progress, 5, lost, NOW_MS - 1)
    return replace(HEALTHY, groups=[Group(f"g{number}", True, (place,)) for number in range(count)])


def link(*, lag_ms: int = 59_000, reason: str = "") -> Facts:
    return replace(HEALTHY, links=(Link("dr", (LinkPartition(AT, 7, lag_ms, 3_000, reason),)),))


def disk(**changes: object) -> Facts:
    return replace(HEALTHY, directories=(replace((HEALTHY.directories or ())[0], **changes),))  # type: ignore[arg-type]


CRITICAL, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE
CASES: list[tuple[str, Facts, Severity, str]] = [
    ("no-active-controller", replace(HEALTHY, controller=-1), CRITICAL, "no controller is active"),
    ("controllers-down", nodes(metrics(1, (m.CONTROLLERS_UNREACHED, 1))), WARNING, "1 of 3 controllers out of reach"),
    ("brokers-fenced", brokers(fenced=True), WARNING, "1 of 3 brokers fenced: broker 3"),
    ("brokers-stopping", brokers(stopping=True), NOTE, "broker 3 shutting down"),
    ("partitions-offline", partitions(leader=-1, isr=()), CRITICAL, "1 partition without a leader: t-0"),
    ("partitions-under-min-isr", partitions(isr=(1,)), CRITICAL, "1 partition with fewer replicas in sync than"),
    ("partitions-under-replicated", partitions(isr=(1, 2)), WARNING, "1 partition with a replica out of sync: t-0"),
    ("reassignments", partitions(replicas=(1, 2, 3, 9), adding=(9,)), WARNING, "cannot end: broker 9 is not live"),
    ("reassignments", partitions(replicas=(2, 1, 3), leader=2, adding=(3,), isr=(1, 2)), NOTE, "moving: t-0"),
    ("leaders-elsewhere", partitions(leader=2), NOTE, "broker 1 0 of 1"),
    ("unclean-elections", nodes(metrics(1, (m.UNCLEAN_ELECTIONS, 2))), CRITICAL, "2 unclean elections since"),
    ("unclean-elections", nodes(metrics(1, (m.UNCLEAN_ELECTIONS, 2), (m.UPTIME, 1e6))), NOTE, "2 unclean elections"),
    ("feature-levels", replace(HEALTHY, features=(Feature("f", 3, 1, 2, ("broker 1",)),)), CRITICAL, "f is at level 3"),
    ("feature-levels", replace(HEALTHY, features=(Feature("f", 1, 1, 2),)), NOTE, "can be raised from 1 to 2"),
    ("feature-levels", replace(HEALTHY, features=(Feature("f", 1, 1, 1, ("broker 1",)),)), NOTE, "on an older version"),
    ("log-directories-failed", disk(failed=True), CRITICAL, "1 log directory failed: node 1 /d"),
    ("disk-space", disk(free_bytes=14), WARNING, "node 1: 14.0 % free"),
    ("disk-space", disk(free_bytes=4), CRITICAL, "node 1: 4.0 % free"),
    ("damaged-records", nodes(metrics(2, (m.DAMAGED, 3))), CRITICAL, "node 2: 3 damaged ranges in x"),
    ("cleaner", nodes(metrics(2, (m.CLEANER_DEAD, 1))), CRITICAL, "node 2: the log cleaner has stopped"),
    ("cleaner", nodes(metrics(2, (m.CLEANER_UNCLEANABLE, 2))), WARNING, "skips 2 logs"),
    ("loop-busy", nodes(metrics(2, busy=0.75)), WARNING, "node 2: the event loop is busy 75 %"),
    ("loop-busy", nodes(metrics(2, busy=0.95)), CRITICAL, "node 2: the event loop is busy 95 %"),
    ("clocks-apart", nodes(metrics(3, clock_ahead_s=9.2, clock_error_s=0.1)), WARNING, "its clock is 9.0 s ahead"),
    ("certificates", nodes(metrics(1, (m.TLS_EXPIRY, 10 * 86_400))), WARNING, "expires in 10.0 days"),
    ("certificates", nodes(metrics(1, (m.TLS_EXPIRY, -86_400))), CRITICAL, "expired 1.0 days ago"),
    ("certificates-refused", nodes(metrics(1, (m.TLS_RELOADS_REFUSED, 1))), NOTE, "1 new certificate refused"),
    ("audit-gaps", nodes(metrics(1, (m.AUDIT_DROPPED, 7))), NOTE, "7 events missing"),
    ("groups-behind", group(Progress.STALLED), WARNING, "stands still: 5 records behind in t-0"),
    ("groups-behind", group(Progress.STOPPED), WARNING, "group g has no reader and lags"),
    ("groups-behind", group(Progress.SLOW), WARNING, "group g reads more slowly"),
    ("groups-behind", group(Progress.REWOUND), WARNING, "group g went back"),
    ("records-lost-to-groups", group(Progress.OK, lost=4), CRITICAL, "group g: 4 records deleted before it read them"),
    ("records-lost-to-groups", group(Progress.OK, members=False, lost=4), NOTE, "group g: 4 records deleted"),
    ("links-behind", link(reason="it has lost records"), CRITICAL, "link dr has stopped in t-0: it has lost"),
    ("links-behind", link(lag_ms=61_000), WARNING, "link dr has not been level with its source for 61 s"),
    ("groups-behind", groups_of(500, Progress.STOPPED), WARNING, "500 groups have no reader and lag (g0, g1, g2,"),
    ("records-lost-to-groups", groups_of(2, Progress.OK, lost=4), CRITICAL, "2 groups (g0, g1): 8 records deleted"),
    (
        "prepared-transactions",
        replace(HEALTHY, prepared=(OpenTransaction("x", NOW_MS - 2 * 3_600_000),)),
        WARNING,
        "transaction x has waited for a decision for 120 minutes",
    ),
    (
        "hanging-transactions",
        replace(HEALTHY, hanging=(HangingTransaction(AT, 7, NOW_MS - 5),)),
        CRITICAL,
        "1 transaction that no coordinator will end: t-0",
    ),
]  # fmt: skip


def test_a_healthy_cluster_has_no_findings_and_everything_was_asked() -> None:
    found = report(HEALTHY)
    assert found.findings == ()
    assert found.unchecked == ()


@pytest.mark.parametrize(("rule", "facts", "severity", "text"), CASES)
def test_a_rule_finds_what_it_is_for_and_no_other_does(rule: str, facts: Facts, severity: Severity, text: str) -> None:
    (found,) = report(facts).findings
    assert (found.rule, found.severity) == (rule, severity)
    assert text in found.what


def test_a_rule_about_open_files() -> None:
    one = NodeMetrics(1, {"process_open_fds": {(): 90.0}, "process_max_fds": {(): 100.0}})
    (found,) = report(nodes(one)).findings
    assert found.what == "node 1: 90 of at most 100 files are open"


def test_every_rule_that_looks_has_a_case_and_every_other_has_an_alert() -> None:
    tested = {rule for rule, *_ in CASES} | {"open-files"}
    assert {rule.name for rule in RULES if rule.needs} == tested
    assert all(rule.alerts for rule in RULES if not rule.needs)


def test_without_facts_nothing_is_found_and_every_rule_says_what_it_lacks() -> None:
    found = report(Facts(NOW_MS))
    assert found.findings == ()
    assert {name for name, _ in found.unchecked} == {rule.name for rule in RULES if rule.needs}


def test_findings_come_worst_first_and_sentences_name_five_at_most() -> None:
    many = tuple(replace(partition(leader=-1, isr=()), at=TopicPartition("t", number)) for number in range(7))
    found = report(replace(HEALTHY, controller=-1, partitions=many, features=(Feature("f", 1, 1, 2),)))
    assert [one.severity for one in found.findings] == [CRITICAL, CRITICAL, NOTE]
    assert found.findings[1].what.endswith("t-0, t-1, t-2, t-3, t-4 and 2 more")
    assert len(found.findings[1].subjects) == 7


def test_commands_that_rules_name_exist_with_their_options() -> None:
    context = click.Context(tree)
    for rule in RULES:
        for command in re.findall(r"`tidelog ([^`]+)`", rule.do):
            found: click.Command = tree
            for word in command.split():
                if word.startswith("--"):
                    assert any(word in option.opts for option in found.params), command
                else:
                    assert isinstance(found, click.Group), command
                    following = found.get_command(context, word)
                    assert following is not None, f"{rule.name}: {command}"
                    found = following
