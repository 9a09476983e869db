"""The judgement of a history's consumer groups, with the simulation's judge.

Here the judge learns of coordinators through the answers that members received: later than the facts, and not all of
them. A member that learned of a generation, or that its commit succeeded, knew by then; when it asked, its request had
not arrived yet. So the judge's findings are valid, whatever the delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidelog.chaos.checkers.consumer_groups import ConsumerGroupJudge, MixedGroupJudge
from tidelog.chaos.checkers.groups import CommitKey, GroupJudge
from tidelog.chaos.checkers.history import Polled
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.processes.laboratory import CONSUMER_SESSION_MS
from tidelog.chaos.laboratory.workloads.client_world import LaboratoryWorld
from tidelog.chaos.workloads.groups import MAX_POLL_INTERVAL_MS
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.consumer_group_api import JOIN_EPOCH

Event = tuple[float, Callable[[], list[str]]]


def judge_groups(recorded: Recorded) -> list[str]:
    """Report violations of the groups whose members recorded their actions."""
    found = []
    for name in sorted({line["group"] for line in recorded.groups}):
        lines = [line for line in recorded.groups if line["group"] == name]
        found += [f"group {name}: {text}" for text in _Group(recorded, lines).judged()]
    return found


class _Group:
    """One group; its lines are passed to a judge in order of time."""

    def __init__(self, recorded: Recorded, lines: list[Mapping[str, Any]]) -> None:
        self._recorded = recorded
        self._lines = lines
        self._assigned_by_server: ConsumerGroupJudge | None = None
        kinds = {line["kind"] for line in lines}
        self._is_mixed = kinds >= {"heartbeat", "join"}
        if "heartbeat" in kinds and not self._is_mixed:
            self._assigned_by_server = ConsumerGroupJudge(
                CONSUMER_SESSION_MS / 1_000, MAX_POLL_INTERVAL_MS * LaboratoryWorld.scale / 1_000
            )
        self._judge = self._assigned_by_server or (MixedGroupJudge() if self._is_mixed else GroupJudge())
        self._servers: dict[TopicPartition, str] = {}
        """Partition → the member that last reported a commit."""

    def judged(self) -> list[str]:
        members = {line["who"] for line in self._lines}
        events = [event for line in self._lines for event in self._events(line)]
        events += [
            (step.ended_s, lambda step=step: self._polled(step))  # type: ignore[misc]
            for step in self._recorded.history.reads
            if isinstance(step, Polled) and step.consumer in members
        ]
        events.sort(key=lambda event: event[0])
        found = [text for _, tell in events for text in tell()]
        if self._recorded.complete and not self._recorded.wrong:
            found += self._at_the_end()
        return found

    def _at_the_end(self) -> list[str]:
        settled = [line for line in self._lines if line["kind"] == "settled"]
        if not settled:
            return ["it never came to rest"]
        topics = set(settled[-1]["topics"])
        ends = {at: end for at, end in self._recorded.ends.items() if at.topic in topics}
        owned = {who: _places(pairs) for who, pairs in settled[-1]["members"].items()}
        return self._judge.all_delivered(ends) + self._judge.settled(owned, sorted(ends))

    def _events(self, line: Mapping[str, Any]) -> Iterator[Event]:
        judge = self._judge
        match line["kind"]:
            case "join" | "sync" | "heartbeat" if self._is_mixed:
                return
            case "join":
                yield (
                    line["ended"],
                    lambda: judge.joined(line["generation"], line["member"], line["instance"], line["ended"]),
                )
            case "sync":
                yield line["ended"], lambda: self._assigned(line)
            case "heartbeat":
                yield line["began"], lambda: self._beat_sent(line)
                yield line["ended"], lambda: self._beat_answered(line)
            case "commit":
                yield line["began"], lambda: self._commit_sent(line)
                yield line["ended"], lambda: self._commit_answered(line)
            case "fetched":
                yield line["ended"], lambda: self._fetched(line)
            case "member":
                yield line["at"], lambda: self._did(line)

    def _assigned(self, line: Mapping[str, Any]) -> list[str]:
        places = _places(line["partitions"])
        return self._judge.assigned(line["generation"], line["member"], line["instance"], places, line["ended"])

    def _beat_sent(self, line: Mapping[str, Any]) -> list[str]:
        judge = self._assigned_by_server
        assert judge is not None
        if line["epoch"] <= JOIN_EPOCH:
            judge.has_nothing(line["member"])
        elif line["owned"] is not None:
            return judge.says(line["who"], line["member"], line["epoch"], _places(line["owned"]))
        return []

    def _beat_answered(self, line: Mapping[str, Any]) -> list[str]:
        judge = self._assigned_by_server
        assert judge is not None
        if line["told"] is None or line["told"] < JOIN_EPOCH:
            return []
        judge.heard(line["member"], line["told"], line["began"])
        if line["given"] is None:
            return []
        return judge.told(line["member"], line["told"], _places(line["given"]), line["ended"])

    def _commit_sent(self, line: Mapping[str, Any]) -> list[str]:
        found = []
        for commit, _ in _commits(line):
            if commit.generation >= 0:
                found += self._judge.commit_sent(commit, line["began"])
            self._judge.commit_arrived(commit, line["began"])
        return found

    def _commit_answered(self, line: Mapping[str, Any]) -> list[str]:
        found = []
        for commit, error in _commits(line):
            # It arrived between the two, or at any time if nobody confirmed it.
            self._judge.commit_arrived(commit, line["ended"] if error == "NONE" else math.inf)
            if error == "NONE":
                self._servers[commit.partition] = line["server"]
                found += self._judge.commit_acknowledged(commit, line["began"], line["ended"])
        return found

    def _fetched(self, line: Mapping[str, Any]) -> list[str]:
        """Judge fetched offsets. A coordinator that knows of no successor returns former state, as Kafka's does; but it
        has the commits of all generations before those of its members."""
        found = []
        for topic, partition, offset in line["offsets"]:
            at = TopicPartition(topic, partition)
            known = self._servers.get(at, line["server"]) == line["server"]
            generation = line["generation"] if known else line["generation"] - 1
            found += self._judge.committed_read(line["who"], generation, at, offset, line["began"], line["ended"])
        return found

    def _did(self, line: Mapping[str, Any]) -> list[str]:
        judge, who = self._judge, line["who"]
        match line["what"]:
            case "owns":
                judge.owns(who, line["generation"], _places(line["partitions"]))
            case "gave-up":
                judge.gave_up(who, _places(line["partitions"]))
            case "done":
                judge.worked_off(TopicPartition(*line["partition"]), line["first"], line["last"])
            case "ended":
                judge.gone(who)
        return []

    def _polled(self, step: Polled) -> list[str]:
        return self._judge.handed_out(step.consumer, step.partition, step.records[0][0], step.records[-1][0])


def _commits(line: Mapping[str, Any]) -> Iterator[tuple[CommitKey, str | None]]:
    for topic, partition, offset, error in line["offsets"]:
        at = TopicPartition(topic, partition)
        yield CommitKey(line["member"], line["instance"], line["generation"], at, offset), error


def _places(pairs: Any) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in pairs]
