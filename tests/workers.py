"""How tests are dealt to the workers of pytest-xdist (``./dev test``, ``pytest -n 4``): whole files, and those that
share what is costly to start as one. The longest come first, so that no worker is left alone with one at the end.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dev.quick import DURATIONS, UNMEASURED_S, group_of
from xdist.scheduler import LoadScopeScheduling

QUEUED_MIN: Final = 3
"""A worker with fewer tests before it gets another group. It begins none before it knows the next one."""


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Deals one group after the other to the worker that has few tests left."""

    collection: list[str] | None

    def schedule(self) -> None:
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            tests: list[str] = next(iter(self.registered_collections.values()))
            self.collection = tests
            self._form_groups(tests)
        for node in self.nodes:
            self._reschedule(node)

    def _form_groups(self, tests: list[str]) -> None:
        groups: dict[str, dict[str, bool]] = {}
        for test in tests:
            groups.setdefault(self._split_scope(test), {})[test] = False
        measured = json.loads(DURATIONS.read_text())
        took = dict.fromkeys(groups, 0.0)
        for path in {_path(test) for test in tests}:
            took[group_of(path)] += measured.get(path, UNMEASURED_S)
        if self.config.option.loadscopereorder:
            groups = dict(sorted(groups.items(), key=lambda item: -took[item[0]]))
        self.workqueue.update(groups)

    def remove_node(self, node: object) -> str | None:
        """Return the test that ended the worker, if one did: xdist's own would begin it again and again."""
        left = self.assigned_work.pop(node)
        crashed = next((test for group in left.values() for test, done in group.items() if not done), None)
        if crashed is not None:
            left[self._split_scope(crashed)][crashed] = True
            self.workqueue.update((name, group) for name, group in left.items() if not all(group.values()))
            for other in self.nodes:
                self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < QUEUED_MIN:
            super()._reschedule(node)

    def _split_scope(self, test: str) -> str:
        return group_of(_path(test))


def _path(test: str) -> str:
    return test.partition("::")[0]
