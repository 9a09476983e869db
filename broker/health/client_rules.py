"""Rules about what clients leave behind: groups and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Facts, Group, GroupPartition, Progress
from tidelog.broker.health.rule import Alert, Found, Rule, Severity, counted, named, only_alerts
from tidelog.transactions.transitions import TransactionState

PREPARED_WARNING_MS: Final = 3600 * 1000

_SEVERITY: Final = {
    Progress.REWOUND: Severity.WARNING,
    Progress.STOPPED: Severity.WARNING,
    Progress.STALLED: Severity.WARNING,
    Progress.SLOW: Severity.WARNING,
}
_SAYS: Final = {
    Progress.REWOUND: "went back",
    Progress.STOPPED: "has no reader and lags",
    Progress.STALLED: "has readers and stands still",
    Progress.SLOW: "reads more slowly than producers write",
}


def _groups(facts: Facts) -> Iterator[Found]:
    for group in facts.groups or ():
        for progress, severity in _SEVERITY.items():
            if at := [one for one in group.partitions if one.progress is progress]:
                yield Found(
                    severity, f"group {group.name} {_SAYS[progress]}: {_standing(at)}", (group.name,), _since(at)
                )
                break


def _lost(facts: Facts) -> Iterator[Found]:
    for group in facts.groups or ():
        if at := [one for one in group.partitions if one.lost]:
            count = counted(sum(one.lost for one in at), "record")
            text = f"group {group.name}: {count} deleted before it read them, in {_names(at)}"
            yield Found(_lost_severity(group), text, (group.name,))


def _lost_severity(group: Group) -> Severity:
    return Severity.CRITICAL if group.members else Severity.NOTE


def _standing(at: list[GroupPartition]) -> str:
    return f"{counted(sum(one.lag for one in at), 'record')} behind in {_names(at)}"


def _names(at: list[GroupPartition]) -> str:
    return named([str(one.at) for one in at])


def _since(at: list[GroupPartition]) -> int | None:
    return min((one.since_ms for one in at if one.since_ms is not None), default=None)


def _prepared(facts: Facts) -> Iterator[Found]:
    for one in facts.prepared or ():
        if facts.now_ms - one.since_ms > PREPARED_WARNING_MS:
            minutes = (facts.now_ms - one.since_ms) // 60_000
            text = f"transaction {one.transactional_id} has waited for a decision for {minutes:,} minutes"
            yield Found(Severity.WARNING, text, (one.transactional_id,), one.since_ms)


def _hanging(facts: Facts) -> Iterator[Found]:
    if found := facts.hanging:
        subjects = tuple(str(one.at) for one in found)
        text = f"{counted(len(found), 'transaction')} that nobody will end: {named(subjects)}"
        yield Found(Severity.CRITICAL, text, subjects, min(one.since_ms for one in found))


RULES: Final = (
    Rule(
        "groups-behind",
        ("groups",),
        "what a group has not read when retention deletes it, it will never read",
        "`tidelog groups describe` shows lag and readers of each partition; look at the consumers' own logs",
        _groups,
    ),
    Rule(
        "records-lost-to-groups",
        ("groups",),
        "the group cannot read them any more; it goes on where its auto.offset.reset says",
        "lengthen the topic's retention, or add readers; `tidelog groups reset-offsets` sets a new place",
        _lost,
    ),
    Rule(
        "prepared-transactions",
        ("prepared",),
        "readers of committed records cannot pass it, and it never times out",
        "ask the program that prepared it; `tidelog transactions` shows and ends it",
        _prepared,
        (
            Alert(
                "TidelogPreparedTransaction",
                Severity.WARNING,
                f'sum({m.TRANSACTIONS.exported}{{state="{TransactionState.PREPARED.value}"}}) > 0',
                "1h",
                "for an hour there were prepared transactions: {{ $value }} now",
            ),
        ),
    ),
    Rule(
        "hanging-transactions",
        ("hanging",),
        "readers of committed records cannot pass them",
        "`tidelog transactions find-hanging` shows them, `tidelog transactions abort` ends them",
        _hanging,
    ),
    Rule(
        "transaction-markers",
        (),
        "readers of committed records wait for the markers of transactions that ended",
        "look for partitions without a leader",
        only_alerts,
        (
            Alert(
                "TidelogMarkersWait",
                Severity.WARNING,
                f"sum({m.MARKERS_LEADERLESS.exported}) > 0",
                "5m",
                "{{ $value }} markers wait for a partition's leader",
            ),
        ),
    ),
)
