"""Patches of how logs move between directories. Each takes away one rule of ``docs/storage.md``, "When a log moves to
another directory"."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_MOVES: Final = "tidelog.storage.log.log_moves"

mutant: Final = partial(Mutant, scenario="directories")

MUTANTS: Final = (
    mutant(
        id="copy-keeps-what-the-log-has-lost",
        rule="KIP-113",
        what="A copy is not truncated where the log was: it continues with records that the leader never had.",
        module=_MOVES,
        old="            if same < copy.log_end_offset:\n                copy.truncate_to(same)\n",
        new="",
    ),
    mutant(
        id="move-is-not-on-disk",
        rule="durability",
        what="A move is decided before its copy is on disk: a power loss takes what the log had on its old disk.",
        module="tidelog.storage.log.movable_log",
        old="        self._flush(whole=True)\n"
        '        assert self.recovery_point == end, f"{self.name} is not durable up to {end}"\n',
        new="        self._flushes.recovery_point = self.log_end_offset\n        self._flushes.is_new = False\n",
    ),
    mutant(
        id="controller-is-not-told-of-a-move",
        rule="KIP-858",
        what="A broker does not report that a replica has moved: when the disk fails, the controller keeps relying on "
        "the replica.",
        module=_MOVES,
        old="        self.on_moved(key, target.directory_id)\n",
        new="",
    ),
)
