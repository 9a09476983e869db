"""What a group owes whose handlers raise: retries through a delay topic, and dead letters. Pure.

A task says itself how often its handler raises, and how it ends. So each has one way: its record, one copy after each
failure but the last, and in the end either a handler that returned or one dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tidelog.chaos.checkers.history import Outcome

RecordHeaders = tuple[tuple[str, bytes | None], ...]

RETRY_OWN: Final = "tidelog-retry-"
DLQ_OWN: Final = "tidelog-dlq-"
DLQ_ERRORS: Final = "__dlq.errors."
"""Prefixes of the headers of copies and dead letters, as docs/patterns.md tells them."""
DELAY_ORDERS: Final = frozenset(
    {"tidelog-deliver-at", "tidelog-delay-ms", "tidelog-deliver-to", "tidelog-cancel", "tidelog-delay-again"}
)
"""Headers that a delay topic acts on, so a copy that goes through one cannot have the task's."""
ADDED: Final = ("__dlq.", "tidelog-")

End = Literal["done", "rejected", "invalid"]
"""What the handler does after its failures: return, or raise what no retry fixes. ``invalid``: it never gets the task,
because a deserializer refuses it."""


class Task(NamedTuple):
    """``failures``: how often the handler raises before its end."""

    mark: bytes
    failures: int
    end: End


@dataclass(frozen=True, slots=True)
class TaskSend:
    task: Task
    outcome: Outcome
    key: bytes | None
    headers: RecordHeaders


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Found(NamedTuple):
    """A record of the tasks, of the copies that came again or of the dead letters, as a reader of what is committed got
    it."""

    mark: bytes
    place: Place
    key: bytes | None
    headers: RecordHeaders

    @property
    def told(self) -> dict[str, str]:
        return {name: (value or b"").decode(errors="replace") for name, value in self.headers}


class Call(NamedTuple):
    """A call of the handler, as it was noted outside of the cluster. ``returned``: it did not raise."""

    mark: bytes
    place: Place
    returned: bool


class Topics(NamedTuple):
    tasks: str
    back: str
    letters: str


def copies_of(task: Task, attempts: int) -> int:
    """Return how often a task comes again."""
    return min(task.failures, attempts - 1)


def dies(task: Task, attempts: int) -> str | None:
    """Return the reason that its dead letter gives; ``None`` for a task that is done in the end."""
    if task.failures >= attempts:
        return "attempts"
    return None if task.end == "done" else task.end


class RetryJudge:
    """Collects and judges. ``attempts``: how often a handler gets a task at most."""

    def __init__(self, topics: Topics, attempts: int, group: str) -> None:
        self.sends: dict[bytes, TaskSend] = {}
        self.found: list[Found] = []
        self.calls: list[Call] = []
        self._topics = topics
        self._attempts = attempts
        self._group = group

    def missing(self) -> set[bytes]:
        """Return what is not at its end: tasks in the log without an end, and acknowledged ones without a record."""
        letters = {found.mark for found in self.found if found.place.topic == self._topics.letters}
        done = {call.mark for call in self.calls if call.returned}
        there = {found.mark for found in self.found if found.place.topic == self._topics.tasks}
        there |= {mark for mark, send in self.sends.items() if send.outcome is Outcome.OK}
        return {
            mark
            for mark in there
            if mark not in (done if dies(self.sends[mark].task, self._attempts) is None else letters)
        }

    def judge(self) -> list[str]:
        ways: dict[bytes, dict[str, list[Found]]] = {}
        for found in self.found:
            ways.setdefault(found.mark, {}).setdefault(found.place.topic, []).append(found)
        said = list(self._calls_known())
        for mark in sorted(ways.keys() | self.sends.keys()):
            send = self.sends.get(mark)
            if send is None:
                said.append(f"retries: {mark!r} was never sent, and is in {sorted(ways[mark])}")
            else:
                said += self._way(send, ways.get(mark, {}))
        return said

    def _calls_known(self) -> Iterator[str]:
        """A handler gets nothing that is not committed."""
        places = {found.place for found in self.found}
        for place in dict.fromkeys(call.place for call in self.calls):
            if place not in places:
                yield f"retries: a handler got {place}, where readers of what is committed find nothing"

    def _way(self, send: TaskSend, way: Mapping[str, Sequence[Found]]) -> Iterator[str]:
        task, topics = send.task, self._topics
        first, copies, letters = (way.get(topic, []) for topic in topics)
        if len(first) > 1:
            yield f"retries: {task.mark!r} was written {len(first)} times"
        if send.outcome is Outcome.OK and not first:
            yield f"retries: {task.mark!r} was acknowledged, and is not there"
        if not first:
            if copies or letters:
                yield f"retries: {task.mark!r} is not there, and came again or died"
            return
        origin = first[0].place
        yield from self._copies(send, origin, copies)
        reason = dies(task, self._attempts)
        if len(letters) != (reason is not None):
            yield f"retries: {task} has {len(letters)} dead letters, expected {int(reason is not None)}"
        for letter in letters[: reason is not None]:
            yield from self._letter(send, origin, letter, str(reason))
        yield from self._handled(task, [first[0].place, *(copy.place for copy in copies)])

    def _copies(self, send: TaskSend, origin: Place, copies: Sequence[Found]) -> Iterator[str]:
        attempts = Counter(copy.told.get(f"{RETRY_OWN}attempt", "none") for copy in copies)
        expected = Counter(str(number + 1) for number in range(copies_of(send.task, self._attempts)))
        if attempts != expected:
            yield (
                f"retries: {send.task} came again after failure {_listed(attempts.elements())}, "
                f"expected {_listed(expected.elements())}"
            )
        for copy in copies:
            yield from _origin(copy, origin, RETRY_OWN)
            yield from _unchanged(send, copy, DELAY_ORDERS)

    def _letter(self, send: TaskSend, origin: Place, letter: Found, reason: str) -> Iterator[str]:
        told, copies = letter.told, copies_of(send.task, self._attempts)
        expected = {
            f"{DLQ_OWN}reason": reason,
            f"{DLQ_ERRORS}delivery.count": str(copies + 1),
            f"{DLQ_ERRORS}group": self._group,
        }
        for name, value in expected.items():
            if told.get(name) != value:
                yield f"retries: the dead letter {send.task} says {name} {told.get(name)!r}, expected {value!r}"
        for name in (f"{DLQ_ERRORS}message", f"{DLQ_OWN}exception", f"{DLQ_OWN}stack"):
            if not told.get(name):
                yield f"retries: the dead letter {send.task} does not say {name}"
        yield from _origin(letter, origin, DLQ_ERRORS)
        yield from _unchanged(send, letter, DELAY_ORDERS if copies else frozenset())

    def _handled(self, task: Task, places: Sequence[Place]) -> Iterator[str]:
        calls = [call for call in self.calls if call.mark == task.mark]
        if task.end == "invalid" and calls:
            yield f"retries: {task} was handled, though it cannot be read"
        if task.end != "invalid":
            for place in places:
                if not any(call.place == place for call in calls):
                    yield f"retries: {task} was never handled at {place}"
        done = {call.place for call in calls if call.returned}
        expected = int(dies(task, self._attempts) is None)
        if len(done) != expected:
            yield f"retries: {task} was done at {len(done)} places, expected {expected}"


def _origin(found: Found, origin: Place, prefix: str) -> Iterator[str]:
    told = found.told
    named = tuple(told.get(f"{prefix}{name}") for name in ("topic", "partition", "offset"))
    if named != tuple(map(str, origin)):
        yield f"retries: {found.mark!r} in {found.place} names {named} as its origin, expected {origin}"


def _unchanged(send: TaskSend, found: Found, left_out: Iterable[str]) -> Iterator[str]:
    """Key and headers are those of the task, in order."""
    own = tuple(pair for pair in found.headers if not pair[0].startswith(ADDED))
    if found.key != send.key:
        yield f"retries: {found.mark!r} in {found.place} has the key {found.key!r}, expected {send.key!r}"
    expected = tuple(pair for pair in send.headers if pair[0] not in left_out)
    if own != expected:
        yield f"retries: {found.mark!r} in {found.place} has the headers {own}, expected {expected}"


def _listed(found: Iterable[str]) -> str:
    return " ".join(sorted(found)) or "none"
