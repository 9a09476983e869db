"""The judgement of sinks, with the simulation's judge: each batch whole, once, from one job."""

from __future__ import annotations

from tidelog.chaos.checkers.sinks import Batch, judge_batches
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.workloads.sinks import BATCHES


def judge_sinks(recorded: Recorded) -> list[str]:
    """Report batches that readers of committed data see twice, in part, or without a decision."""
    rows = [value for at, records in recorded.final.items() if at.topic == BATCHES for _, value in records]
    if not recorded.complete or not (rows or recorded.batches):
        return []
    if recorded.sinks is None:
        return ["sinks: expected a line of what their ledgers say in the end, found none"]
    batches = [
        Batch(row["sink"], row["number"], row["rows"], row["asked"], row["told"], row["aborted"])
        for row in recorded.batches
    ]
    return judge_batches(rows, batches, recorded.sinks["noted"], recorded.sinks["last"])
