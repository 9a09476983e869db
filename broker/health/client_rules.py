"""Rules about groups and transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import Facts, GroupPartition, Progress
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
    Progress.REWOUND: ("went back", "went back"),
    Progress.STOPPED: ("has no reader and lags", "have no reader and lag"),
    Progress.STALLED: ("has readers and stands still", "have readers and stand still"),
    Progress.SLOW: ("reads more slowly than producers write", "read more slowly than producers write"),
}
"""Of one group, and of several."""


def _groups(facts: Facts) -> Iterator[Found]:
    """One finding for each state, however many groups are in it. A group is in its worst partition's."""
    behind: dict[Progress, dict[str, list[GroupPartition]]] = {progress: {} for progress in _SEVERITY}
    for group in facts.groups or ():
        for progress, groups in behind.items():
            if at := [one for one in group.partitions if one.progress is progress]:
                groups[group.name] = at
                break
    for progress, groups in behind.items():
        if groups:
            one, several = _SAYS[progress]
            at = [each for partitions in groups.values() for each in partitions]
            records = f"{counted(sum(each.lag for each in at), 'record')} behind"
            text = _folded(groups, one, several)
            text = f"{text}: {records} in {_names(at)}" if len(groups) == 1 else f"{text}; {records}"
            yield Found(_SEVERITY[progress], text, tuple(groups), _since(at))


def _lost(facts: Facts) -> Iterator[Found]:
    for severity, members in ((Severity.CRITICAL, True), (Severity.NOTE, False)):
        groups = {
            group.name: at
            for group in facts.groups or ()
            if group.members is members and (at := [one for one in group.partitions if one.lost])
        }
        if groups:
            at = [each for partitions in groups.values() for each in partitions]
            count = counted(sum(one.lost for one in at), "record")
            text = f"{count} deleted before {'it' if len(groups) == 1 else 'they'} read them, in {_names(at)}"
            text = f"{_folded(groups, '', '')}: {text}"
            yield Found(severity, text, tuple(groups))


def _folded(groups: Collection[str], one: str, several: str) -> str:
    """``group a stands still``, ``2 groups stand still: a, b``."""
    if len(groups) == 1:
        return f"group {next(iter(groups))} {one}".rstrip()
    return f"{counted(len(groups), 'group')} {several}".rstrip() + f" ({named([*groups])})"


def _names(at: list[GroupPartition]) -> str:
    return named([str(one.at) for one in at])


def _since(at: list[GroupPartition]) -> int | None:
    return min((one.since_ms for one in at if one.since_ms is not None), default=None)


def _prepared(facts: Facts) -> Iterator[Found]:
    due = [one for one in facts.prepared or () if facts.now_ms - one.since_ms > PREPARED_WARNING_MS]
    if due:
        since_ms, subjects = min(one.since_ms for one in due), tuple(one.transactional_id for one in due)
        who = f"transaction {subjects[0]} has" if len(due) == 1 else f"{counted(len(due), 'transaction')} have"
        text = f"{who} waited for a decision for {(facts.now_ms - since_ms) // 60_000:,} minutes"
        yield Found(Severity.WARNING, text + (f" or less: {named(subjects)}" if due[1:] else ""), subjects, since_ms)


LINK_LAG_WARNING_MS: Final = 60_000
"""For how long something may be left to fetch, or nobody have looked. A link looks every five seconds."""


def _links(facts: Facts) -> Iterator[Found]:
    """A link that runs no more lags as well: nobody has looked."""
    for link in facts.links or ():
        if stopped := [one for one in link.partitions if one.reason]:
            subjects = tuple(str(one.at) for one in stopped)
            text = f"link {link.name} has stopped in {named(subjects)}: {stopped[0].reason}"
            yield Found(Severity.CRITICAL, text, subjects)
        behind = [one for one in link.partitions if not one.reason and one.lag_ms > LINK_LAG_WARNING_MS]
        if behind:
            seconds, records = max(one.lag_ms for one in behind) // 1000, sum(one.lag for one in behind)
            text = (
                f"link {link.name} has not been level with its source for {seconds:,} s, and last heard "
                f"{min(one.heard_ms for one in behind) // 1000:,} s ago from it; {counted(records, 'record')} behind "
                f"then, in {named([str(one.at) for one in behind])}"
            )
            yield Found(Severity.WARNING, text, (link.name,), facts.now_ms - max(one.lag_ms for one in behind))


def _hanging(facts: Facts) -> Iterator[Found]:
    if found := facts.hanging:
        subjects = tuple(str(one.at) for one in found)
        text = f"{counted(len(found), 'transaction')} that no coordinator will end: {named(subjects)}"
        yield Found(Severity.CRITICAL, text, subjects, min(one.since_ms for one in found))


RULES: Final = (
    Rule(
        "groups-behind",
        ("groups",),
        "records that retention deletes before the group reads them are lost to it",
        "`tidelog groups describe` shows lag and readers of each partition; look at the consumers' own logs",
        _groups,
        (
            Alert(
                "TidelogGroupBehind",
                Severity.WARNING,
                f"sum by (group, state) ({m.GROUP_PARTITIONS_BEHIND.exported}) > 0",
                "10m",
                "group {{ $labels.group }} is {{ $labels.state }} in {{ $value }} partitions",
            ),
        ),
    ),
    Rule(
        "records-lost-to-groups",
        ("groups",),
        "the group can no longer read them; it continues according to its auto.offset.reset",
        "lengthen the topic's retention, or add readers; `tidelog groups reset-offsets` sets a new position",
        _lost,
    ),
    Rule(
        "links-behind",
        ("links",),
        "what the source has beyond a link's position is lost if it is lost now",
        "`tidelog links status` shows each partition; see that `tidelog links run` runs, and what it says",
        _links,
        (
            Alert(
                "TidelogLinkBehind",
                Severity.WARNING,
                f"max by (link) ({m.LINK_LAG_SECONDS.exported}) > {LINK_LAG_WARNING_MS // 1000}",
                "5m",
                "link {{ $labels.link }} has not been level with its source for {{ $value }} s",
            ),
            Alert(
                "TidelogLinkStopped",
                Severity.CRITICAL,
                f"sum by (link) ({m.LINK_PARTITIONS_STOPPED.exported}) > 0",
                "0s",
                "link {{ $labels.link }} has stopped in {{ $value }} partitions",
            ),
        ),
    ),
    Rule(
        "prepared-transactions",
        ("prepared",),
        "readers of committed records cannot pass it, and it never times out",
        "check the program that prepared it; `tidelog transactions` shows and ends it",
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
