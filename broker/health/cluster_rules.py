"""Rules about controllers, brokers, partitions and feature levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Facts, Partition
from tidelog.broker.health.rule import Alert, Found, Rule, Severity, counted, named

IMBALANCE_PERCENT: Final = 10
"""Kafka's ``leader.imbalance.per.broker.percentage``."""
BROKERS_STOPPING: Final = "brokers-stopping"
RECENT_S: Final = 24 * 3600
"""A counter does not say when it increased. On a node that has been up for longer than this, it only gives a note."""


def _no_controller(facts: Facts) -> Iterator[Found]:
    if facts.controller is not None and facts.controller < 0:
        yield Found(Severity.CRITICAL, "no controller is active")


def unreached(facts: Facts) -> int | None:
    """Return the controllers to which the active one has no stream; ``None`` if it did not say."""
    active = (facts.nodes or {}).get(-1 if facts.controller is None else facts.controller)
    return None if active is None else int(active.total(m.CONTROLLERS_UNREACHED))


def _controllers_down(facts: Facts) -> Iterator[Found]:
    voters = len(facts.voters or ())
    if down := unreached(facts):
        spare = (voters - 1) // 2 - down
        margin = "if one more fails, metadata cannot change" if spare <= 0 else f"{spare} more may fail"
        yield Found(Severity.WARNING, f"{down} of {counted(voters, 'controller')} out of reach; {margin}")


def _fenced(facts: Facts) -> Iterator[Found]:
    fenced = [broker.node for broker in (facts.brokers or {}).values() if broker.fenced]
    if fenced:
        subjects = tuple(f"broker {node}" for node in sorted(fenced))
        text = f"{len(fenced)} of {counted(len(facts.brokers or {}), 'broker')} fenced: {named(subjects)}"
        yield Found(Severity.WARNING, text, subjects)


def _stopping(facts: Facts) -> Iterator[Found]:
    stopping = [broker.node for broker in (facts.brokers or {}).values() if broker.stopping and not broker.fenced]
    if stopping:
        subjects = tuple(f"broker {node}" for node in sorted(stopping))
        yield Found(Severity.NOTE, f"{named(subjects)} shutting down", subjects)


def _partitions(
    severity: Severity, text: str, chosen: Callable[[Partition], bool]
) -> Callable[[Facts], Iterator[Found]]:
    """Report one finding about all ``chosen`` partitions."""

    def look(facts: Facts) -> Iterator[Found]:
        subjects = tuple(str(one.at) for one in facts.partitions or () if chosen(one))
        if subjects:
            yield Found(severity, f"{counted(len(subjects), 'partition')} {text}: {named(subjects)}", subjects)

    return look


def _below_min_isr(partition: Partition) -> bool:
    return partition.leader >= 0 and partition.min_isr is not None and len(partition.isr) < partition.min_isr


def _under_replicated(partition: Partition) -> bool:
    """Return whether ``UnderReplicatedPartitions`` counts it: replicas that are only being added do not."""
    wanted = len(partition.replicas) - len(partition.adding)
    return partition.leader >= 0 and len(partition.isr) < wanted and not _below_min_isr(partition)


def whole(partition: Partition) -> bool:
    """Whether no rule finds anything about the partition's leader and replicas."""
    return partition.leader >= 0 and not _below_min_isr(partition) and not _under_replicated(partition)


def _reassignments(facts: Facts) -> Iterator[Found]:
    moving = [one for one in facts.partitions or () if one.adding or one.removing]
    live = {node for node, broker in (facts.brokers or {}).items() if broker.live}
    waits = [one for one in moving if not live.issuperset(one.adding)]
    if waits:
        subjects = tuple(str(one.at) for one in waits)
        gone = sorted({node for one in waits for node in one.adding} - live)
        text = f"{counted(len(waits), 'reassignment')} cannot end: broker {named([*map(str, gone)])} is not live; "
        yield Found(Severity.WARNING, text + named(subjects), subjects)
    if len(moving) > len(waits):
        subjects = tuple(str(one.at) for one in moving if one not in waits)
        yield Found(Severity.NOTE, f"{counted(len(subjects), 'partition')} moving: {named(subjects)}", subjects)


def _imbalance(facts: Facts) -> Iterator[Found]:
    live = {node for node, broker in (facts.brokers or {}).items() if broker.live}
    preferred, elsewhere = Counter[int](), Counter[int]()
    for one in facts.partitions or ():
        first = next((node for node in one.replicas if node not in one.adding), -1)
        if first in live and one.leader >= 0:
            preferred[first] += 1
            elsewhere[first] += one.leader != first
    short = [node for node, count in sorted(elsewhere.items()) if 100 * count > IMBALANCE_PERCENT * preferred[node]]
    if short:
        each = [f"broker {node} {preferred[node] - elsewhere[node]:,} of {preferred[node]:,}" for node in short]
        yield Found(Severity.NOTE, f"not all partitions are led by their preferred broker: {named(each)}", tuple(each))


def _unclean(facts: Facts) -> Iterator[Found]:
    for node in (facts.nodes or {}).values():
        if count := int(node.total(m.UNCLEAN_ELECTIONS)):
            recent = node.total(m.UPTIME) < RECENT_S
            text = f"{counted(count, 'unclean election')} since controller {node.node} became active"
            yield Found(Severity.CRITICAL if recent else Severity.NOTE, text, (f"node {node.node}",))


def _features(facts: Facts) -> Iterator[Found]:
    for feature in facts.features or ():
        if not feature.lowest <= feature.level <= feature.highest:
            text = (
                f"{feature.name} is at level {feature.level}, and every node supports only "
                f"{feature.lowest} to {feature.highest}"
            )
            yield Found(Severity.CRITICAL, text, feature.behind)
        elif feature.behind:
            text = f"{named(feature.behind)} on an older version: {feature.name} {feature.highest} at most"
            yield Found(Severity.NOTE, text, feature.behind)
        elif feature.level < feature.highest:
            text = f"{feature.name} can be raised from {feature.level} to {feature.highest}"
            yield Found(Severity.NOTE, text, (feature.name,))


_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING

RULES: Final = (
    Rule(
        "no-active-controller",
        ("controller",),
        "topics cannot be created, and no new leader is elected when a broker fails",
        "start controllers until a majority runs; `/ready` of each says what it waits for",
        _no_controller,
        (
            Alert(
                "TidelogNoActiveController",
                _CRITICAL,
                f"sum(max_over_time({m.ACTIVE_CONTROLLERS.exported}[1m])) < 1",
                "30s",
                "no controller is active",
            ),
            Alert(
                "TidelogSeveralActiveControllers",
                _CRITICAL,
                f"sum({m.ACTIVE_CONTROLLERS.exported}) > 1",
                "1m",
                "{{ $value }} controllers claim to be active",
            ),
        ),
    ),
    Rule(
        "controllers-down",
        ("voters", "controller", "nodes"),
        "metadata changes need a majority of the controllers",
        "start the controllers that are down",
        _controllers_down,
        (
            Alert(
                "TidelogControllerDown",
                _WARNING,
                f"max({m.CONTROLLERS_UNREACHED.exported} and {m.ACTIVE_CONTROLLERS.exported} == 1) > 0",
                "2m",
                "{{ $value }} controllers are out of reach of the active one",
            ),
        ),
    ),
    Rule(
        "brokers-fenced",
        ("brokers",),
        "their partitions have one replica fewer, and get no new leaders there",
        "start the broker, or look at its log; `tidelog brokers unregister` removes one that is gone for good",
        _fenced,
        (
            Alert(
                "TidelogBrokerFenced",
                _WARNING,
                f"max({m.FENCED_BROKERS.exported} and {m.ACTIVE_CONTROLLERS.exported} == 1) > 0",
                "2m",
                "{{ $value }} brokers are fenced",
            ),
        ),
    ),
    Rule(
        BROKERS_STOPPING,
        ("brokers",),
        "they hand over their leaderships",
        "nothing, if you are stopping them",
        _stopping,
    ),
    Rule(
        "partitions-offline",
        ("partitions",),
        "nobody can write to these partitions or read them",
        "start the brokers that hold their replicas; `tidelog topics describe --unhealthy` names them. "
        "`tidelog elect --unclean` elects any live replica, but records that it lacks are lost",
        _partitions(Severity.CRITICAL, "without a leader", lambda one: one.leader < 0),
        (
            Alert(
                "TidelogPartitionOffline",
                _CRITICAL,
                f"max({m.OFFLINE_PARTITIONS.exported} and {m.ACTIVE_CONTROLLERS.exported} == 1) > 0",
                "30s",
                "{{ $value }} partitions have no leader",
            ),
        ),
    ),
    Rule(
        "partitions-under-min-isr",
        ("partitions",),
        "producers with acks=all are refused (NOT_ENOUGH_REPLICAS)",
        "bring brokers back; nothing was lost",
        _partitions(Severity.CRITICAL, "with fewer replicas in sync than min.insync.replicas", _below_min_isr),
        (
            Alert(
                "TidelogUnderMinIsr",
                _CRITICAL,
                f"sum({m.UNDER_MIN_ISR.exported}) > 0",
                "1m",
                "{{ $value }} partitions refuse producers with acks=all",
            ),
        ),
    ),
    Rule(
        "partitions-under-replicated",
        ("partitions",),
        "there are too few copies: the next failures may stop writers or lose records",
        "start the broker that is missing; if it runs, look at its disk and its loop's busy share",
        _partitions(Severity.WARNING, "with a replica out of sync", _under_replicated),
        (
            Alert(
                "TidelogUnderReplicated",
                _WARNING,
                f"sum({m.UNDER_REPLICATED.exported}) > 0",
                "5m",
                "{{ $value }} partitions have a replica out of sync",
            ),
        ),
    ),
    Rule(
        "reassignments",
        ("partitions", "brokers"),
        "a move that cannot end keeps replicas on both sides",
        "`tidelog reassign --list` shows the moves; start the broker, or cancel the move",
        _reassignments,
        (
            Alert(
                "TidelogReassignmentStuck",
                _WARNING,
                f"sum({m.REASSIGNMENTS_WAITING.exported}) > 0",
                "5m",
                "{{ $value }} partitions are being moved to a broker that is fenced or gone",
            ),
        ),
    ),
    Rule(
        "leaders-elsewhere",
        ("partitions", "brokers"),
        "some brokers do more than their share",
        "nothing while auto.leader.rebalance.enable is on: the controller fixes it; `tidelog elect` does so now",
        _imbalance,
    ),
    Rule(
        "unclean-elections",
        ("nodes",),
        "a leader may lack acknowledged records",
        "find out which replicas were lost; compare what consumers read with what producers sent",
        _unclean,
        (
            Alert(
                "TidelogUncleanElection",
                _CRITICAL,
                f"sum(increase({m.UNCLEAN_ELECTIONS.exported}[15m])) > 0",
                "0s",
                "records may be lost: elected leaders may lack some",
            ),
        ),
    ),
    Rule(
        "feature-levels",
        ("features",),
        "nodes must agree on what they write; a level that was raised cannot always be lowered",
        "upgrade all nodes to the same version, then `tidelog features upgrade`",
        _features,
    ),
)
