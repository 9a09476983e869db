"""The judgement of a history file, with the simulation's judges, and the time that recovery took.

A history is self-contained: nothing here knows the cluster or the process that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from tidelog.chaos.checkers.anomalies.log import violations
from tidelog.chaos.checkers.history import Circumstances, Outcome, Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.checkers.transactions import Attempt, all_or_none, only_what_counts, sum_holds
from tidelog.chaos.laboratory.faults.schedule import ENDS
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.compaction_judgement import cleaned, compacted, judge_compaction
from tidelog.chaos.laboratory.judge.derived_judgement import judge_derived, unrecorded, without
from tidelog.chaos.laboratory.judge.group_judgement import judge_groups
from tidelog.chaos.laboratory.judge.recovery import Recovery, Wait, elections, recoveries, wholes
from tidelog.chaos.laboratory.judge.sink_judgement import judge_sinks
from tidelog.chaos.workloads.transactions import ACCOUNTS, BALANCE, BANK, balances_after
from tidelog.model.ids import TopicPartition

SHOWN_MAX: Final = 25
"""Violations shown on a terminal, and the maximum characters of each."""
TEXT_MAX: Final = 240


@dataclass(slots=True)
class Verdict:
    """``violations`` is empty if everything held."""

    violations: list[str] = field(default_factory=list)
    faults: int = 0
    not_done: int = 0
    """Steps that hit no target, or that the laboratory could not do."""
    sends: Mapping[Outcome, int] = field(default_factory=dict)
    records: int = 0
    """In the logs at the end."""
    reads: int = 0
    """Records handed out to consumers."""
    transactions: Mapping[Outcome, int] = field(default_factory=dict)
    cleaned: int = 0
    """Records that cleaners removed from the replicas of compacted topics."""
    recoveries: list[Recovery] = field(default_factory=list)
    elections_s: list[float] = field(default_factory=list)
    """From a kill of the active controller until another one was elected."""
    whole_s: list[float] = field(default_factory=list)
    """From the end of an episode until every replica was in sync again, if the next one did not begin before."""

    @property
    def held(self) -> bool:
        return not self.violations


def judge(recorded: Recorded) -> Verdict:
    """Judge a history."""
    history, run = recorded.history, recorded.run
    verdict = Verdict()
    if not recorded.complete:
        verdict.violations.append("the history has no end: the run did not come to it")
    verdict.violations += recorded.wrong
    foreign = unrecorded(recorded)
    apart = foreign | compacted(recorded).keys()
    final = {at: records for at, records in recorded.final.items() if at.topic not in apart}
    circumstances = Circumstances(log_starts=recorded.log_starts)
    verdict.violations += violations(without(history, apart), final, circumstances)
    verdict.violations += _transactions(recorded, foreign)
    verdict.violations += judge_derived(recorded)
    verdict.violations += judge_groups(recorded)
    verdict.violations += judge_compaction(recorded)
    verdict.violations += judge_sinks(recorded)
    verdict.violations += _bank(recorded)
    verdict.violations += _replicas(recorded)
    if recorded.complete and (missing := _unread(run, recorded)):
        verdict.violations.append(f"not read at the end: {missing}")
    verdict.faults = sum(fault["act"] not in ENDS and not fault["trouble"] for fault in recorded.faults)
    verdict.not_done = sum(bool(fault["trouble"]) for fault in recorded.faults)
    verdict.sends = _counted(sent.outcome for sent in history.sends)
    verdict.transactions = _counted(each.outcome for each in history.transactions)
    verdict.records = sum(map(len, recorded.final.values()))
    verdict.reads = sum(len(records) for step in history.reads if (records := getattr(step, "records", ())))
    verdict.cleaned = cleaned(recorded)
    verdict.recoveries = recoveries(recorded)
    verdict.elections_s = _waited(elections(recorded))
    verdict.whole_s = _waited(wholes(recorded))
    return verdict


def _transactions(recorded: Recorded, foreign: set[str]) -> list[str]:
    """Judge the topics that transactions write to; ``foreign``: those that appear in the history through their readers
    only."""
    found = []
    attempts = attempts_of(recorded)
    written = {at.topic for attempt in attempts for at, _ in attempt.writes}
    counts = {at: records for at, records in recorded.final.items() if at.topic in written | foreign}
    if attempts:
        found += all_or_none(attempts, {at: records for at, records in counts.items() if at.topic in written})
    came_to_the_end = recorded.complete and not recorded.wrong
    for polls, places in _read_through(recorded):
        due = {at: records for at, records in counts.items() if at in places}
        found += only_what_counts(attempts, polls, due, complete=came_to_the_end)
    return found


def _read_through(recorded: Recorded) -> list[tuple[list[Polled], set[TopicPartition]]]:
    """Return the records of read_committed readers that began at 0 and never sought; and the partitions that each
    reads."""
    sought: dict[str, set[TopicPartition]] = {}
    elsewhere: set[str] = set()
    polls: dict[str, list[Polled]] = {}
    for step in recorded.history.reads:
        if isinstance(step, Positioned):
            sought.setdefault(step.consumer, set()).add(step.partition)
            if step.offset != 0:
                elsewhere.add(step.consumer)
        elif step.read_committed:
            polls.setdefault(step.consumer, []).append(step)
    return [(found, sought.get(name, set())) for name, found in polls.items() if name not in elsewhere]


def _bank(recorded: Recorded) -> list[str]:
    """Judge that the sum of the accounts never changes: not when a teller reads them, and not at the end."""
    found = []
    for snapshot in recorded.snapshots:
        found += sum_holds(snapshot["who"], snapshot["balances"], ACCOUNTS * BALANCE)
    values = [value for at, records in recorded.final.items() if at.topic == BANK for _, value in records]
    return found + sum_holds("the read at the end", balances_after(values), ACCOUNTS * BALANCE)


def attempts_of(recorded: Recorded) -> list[Attempt]:
    """Return the transactions of a history in the form that their judges need."""
    writes: dict[TransactionKey, list[Sent]] = {}
    for sent in recorded.history.sends:
        if sent.transaction is not None and sent.outcome is not Outcome.FAILED:
            writes.setdefault(sent.transaction, []).append(sent)
    found = []
    for each in recorded.history.transactions:
        sends = sorted(writes.get(each.key, ()), key=lambda sent: sent.number)
        attempt = Attempt(each.key, [(sent.partition, sent.value) for sent in sends], each.outcome)
        attempt.committing_s = recorded.commits_asked.get(each.key, attempt.committing_s)
        found.append(attempt)
    return found


def shown(verdict: Verdict, run: Mapping[str, Any]) -> str:
    """Describe the verdict for a terminal."""
    sends = ", ".join(f"{count} {outcome.value}" for outcome, count in verdict.sends.items())
    lines = [
        f"seed {run['seed']}, {run['workload']}: {verdict.faults} faults, sends {sends}; {verdict.records} records in "
        f"the logs, {verdict.reads} read"
    ]
    if verdict.transactions:
        counts = ", ".join(f"{count} {outcome.value}" for outcome, count in verdict.transactions.items())
        lines.append(f"transactions: {counts}")
    if verdict.cleaned:
        lines.append(f"compaction: cleaners took {verdict.cleaned} records from the copies")
    if verdict.not_done:
        lines.append(f"{verdict.not_done} steps were not done: they hit nobody, or the laboratory failed")
    by_act: dict[str, list[float]] = {}
    for one in verdict.recoveries:
        if one.worst_s is not None:
            by_act.setdefault(one.act, []).append(one.worst_s)
    for act, waits in sorted(by_act.items()):
        lines.append(f"after {act}: next acknowledgement on every partition that was hit within {_spread(waits)}")
    if verdict.elections_s:
        lines.append(f"after the controller was killed: another one within {_spread(verdict.elections_s)}")
    if verdict.whole_s:
        lines.append(f"after an episode: all copies in sync within {_spread(verdict.whole_s)}")
    lines.append("held: nothing illegal in the history" if verdict.held else "BROKEN:")
    lines += [
        f"  {text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + '…'}" for text in verdict.violations[:SHOWN_MAX]
    ]
    if (more := len(verdict.violations) - SHOWN_MAX) > 0:
        lines.append(f"  and {more} more")
    return "\n".join(lines)


def _waited(waits: Sequence[Wait]) -> list[float]:
    return [wait.waited_s for wait in waits if wait.waited_s is not None and not wait.cut_short]


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s (median of {len(seconds)}), {max(seconds):.2f} s at worst"


def _replicas(recorded: Recorded) -> list[str]:
    found = []
    for row in recorded.replicas:
        differ = len({(size, digest) for _, size, digest in row["copies"]}) > 1
        if differ and row["topic"] not in compacted(recorded):  # each node's cleaner works at its own time
            sizes = ", ".join(f"node {node} {size} bytes {digest[:8]}" for node, size, digest in row["copies"])
            found.append(f"replicas of {row['topic']}-{row['partition']} differ when all is over: {sizes}")
        if len(row["copies"]) != (due := min(3, recorded.run["nodes"])):
            found.append(f"{row['topic']}-{row['partition']}: expected {due} copies, found {len(row['copies'])}")
    return found


def _counted(outcomes: Iterable[Outcome]) -> dict[Outcome, int]:
    counts: dict[Outcome, int] = {}
    for outcome in outcomes:
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def _unread(run: Mapping[str, Any], recorded: Recorded) -> str:
    wanted = [TopicPartition(topic, number) for topic, count in run["topics"].items() for number in range(count)]
    return ", ".join(str(at) for at in wanted if at not in recorded.final)
