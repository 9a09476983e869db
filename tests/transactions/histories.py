"""What random histories of a coordinator's partition share: requests and answers, appends that end late or never,
producer ids, coordinators that crash with any part of the unacknowledged log lost."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tidelog.model.errors import ErrorCode

from .conftest import Desk

NONE = ErrorCode.NONE


class DeskHistory(RuleBasedStateMachine):
    """Drives a desk of its own with these settings."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.desk = Desk(auto=False, marks=False, **changes)
        self.asked: dict[int, tuple[str, Any]] = {}
        self.seen: set[int] = set()
        self.read = 0
        self.markers_seen = 0

    @abstractmethod
    def _look(self) -> None:
        """Take in what was written, sent and answered since."""

    @abstractmethod
    def _succeeded(self, kind: str, what: object, answer: object) -> None:
        """A request was answered without an error (a verification, with one too)."""

    def _ask(self, waiter: int, kind: str, what: object) -> None:
        self.asked[waiter] = (kind, what)
        self._look()

    def _hear(self) -> None:
        for waiter in sorted(set(self.desk.answers) - self.seen):
            self.seen.add(waiter)
            if self.asked[waiter][0] == "verify" or self.desk.error(waiter) is NONE:
                self._succeeded(*self.asked[waiter], self.desk.answers[waiter])

    @rule()
    def append_ends(self) -> None:
        if self.desk.appends:  # the high watermark rises in order
            self.desk.end_append(at=0)
            self._look()

    @rule()
    def append_is_refused(self) -> None:
        """The last one: those before it are written."""
        if self.desk.appends:
            self.desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE, at=len(self.desk.appends) - 1)
            self._look()

    @rule(answered=st.booleans())
    def producer_id_comes(self, answered: bool) -> None:
        if self.desk.allocations:
            self.desk.allocate(answered=answered)
            self._look()

    @rule()
    def everything_is_replicated(self) -> None:
        while self.desk.appends or self.desk.allocations:
            if self.desk.allocations:
                self.desk.allocate()
            else:
                self.desk.end_append()
        self._look()

    @rule(written=st.integers(0, 4))
    def coordinator_crashes(self, written: int) -> None:
        """Some of what was under way is in the log after all; its askers only hear that the leader is gone."""
        self.desk.log += self.desk.appends[:written]
        self.desk.fail_over()
        self._look()
        assert set(self.asked) == set(self.desk.answers)

    @invariant()
    def nobody_is_lost(self) -> None:
        state = self.desk.shard.state
        waiting = {asker.waiter for append in state.appends.values() for asker in append.askers}
        waiting |= {asker.waiter for item in state.allocations.values() for asker in item.askers}
        adds = [add.waiter for entry in state.entries.values() for add in entry.adds]
        assert len(adds) == state.waiting_adds
        assert waiting | set(adds) == set(self.asked) - set(self.desk.answers)


def run_histories(machine: type[DeskHistory], examples: int) -> None:
    """Run so many histories of forty steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
