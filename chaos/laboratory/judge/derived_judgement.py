"""The judgement of derived topics: each input has one output, and offsets agree with that."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.chaos.checkers.anomalies.kinds import EXAMPLES_MAX
from tidelog.chaos.checkers.history import History
from tidelog.chaos.checkers.transactions import exactly_once
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.workloads.workload import made_of
from tidelog.chaos.workloads.sinks import BATCHES
from tidelog.model.ids import TopicPartition


def judge_derived(recorded: Recorded) -> list[str]:
    """Report inputs with no output or several at the end, and groups that have not committed all of them."""
    if not recorded.complete:
        return []
    found = []
    for made, source in sorted(recorded.run.get("derived", {}).items()):
        inputs = list(_values(recorded, source))
        outputs = [made_of(value) for value in _values(recorded, made)]
        wrong = exactly_once(inputs, outputs)
        found += [f"{made}: {text}" for text in wrong[:EXAMPLES_MAX]]
        if len(wrong) > EXAMPLES_MAX:
            found.append(f"{made}: exactly once: and {len(wrong) - EXAMPLES_MAX} more")
    for line in recorded.committed:
        for topic, partition, offset in line["offsets"]:
            end = recorded.ends.get(TopicPartition(topic, partition))
            if offset != end:
                found.append(
                    f"offsets: group {line['group']} has {offset} committed for {topic}-{partition}, it ends at {end}"
                )
    return found


def unrecorded(recorded: Recorded) -> set[str]:
    """Return the topics that have a writer whose writes are not in the history."""
    told_of_otherwise = {*recorded.run.get("derived", {}), *({BATCHES} & set(recorded.run.get("topics", {})))}
    return told_of_otherwise - {sent.partition.topic for sent in recorded.history.sends}


def without(history: History, topics: set[str]) -> History:
    """Return a history of the other topics."""
    sends = [sent for sent in history.sends if sent.partition.topic not in topics]
    reads = [step for step in history.reads if step.partition.topic not in topics]
    return History(sends, reads, history.transactions)


def _values(recorded: Recorded, topic: str) -> Iterator[bytes]:
    for at, records in sorted(recorded.final.items()):
        if at.topic == topic:
            yield from (value for _, value in records)
