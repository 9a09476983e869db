"""What release 0.1 sends and writes is read here, and the other way, kind by kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.upgrade.test_rolling_upgrade import release_0_1
from tidelog.chaos.simulated.former.node import CALL_MODULES
from tidelog.chaos.simulated.former.release import module
from tidelog.proto.calls import table
from tidelog.proto.calls.convert import from_proto

__all__ = ["release_0_1"]

PROGRAM = Path(__file__).parent / "plain_messages.py"
GATED = {"UserScramCredentialRecord", "RegisterControllerRecord", "AlterReplicaLogDirsRequest"}
"""Some that 0.1 does not have."""
OTHER_KINDS = {"FrameFetchResponse", "GroupMetadataValue", "TransactionLogValue", "SinkLedgerValue", "Snapshot"}
"""One of each kind besides calls, records of the metadata log and Raft's messages."""


def run(python: str, what: str, given: str = "") -> str:
    command = [python, "-P", str(PROGRAM), what]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=60).stdout


def rows(text: str) -> dict[str, Any]:
    return {row[0]: row[-1] for row in map(json.loads, text.splitlines())}


def known_to_both(one: object, other: object) -> Any:
    """``one`` without the fields that ``other`` does not have."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: known_to_both(one[name], other[name]) for name in one if name in other}
    if isinstance(one, list) and isinstance(other, list):
        return [known_to_both(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    return one


def test_each_release_reads_what_the_other_one_writes(release_0_1: str) -> None:
    old, new = run(release_0_1, "encode"), run(sys.executable, "encode")
    written, read = rows(old), rows(run(sys.executable, "decode", old))
    assert len(written) > 100
    assert written.keys() > OTHER_KINDS
    assert written.keys() == read.keys(), "a kind of release 0.1 is gone"
    for name, value in written.items():
        assert known_to_both(read[name], value) == value, name
    present, there = rows(new), rows(run(release_0_1, "decode", new))
    assert there.keys() == written.keys()
    assert present.keys() - there.keys() >= GATED
    for name, value in there.items():
        assert known_to_both(present[name], value) == value, name


def messages_of(found: ModuleType) -> Iterator[tuple[str, type[Any]]]:
    for name, cls in vars(found).items():
        if isinstance(cls, type) and is_dataclass(cls):
            yield name, cls


def test_a_field_that_release_0_1_does_not_send_is_read_as_its_default() -> None:
    """A sender of today that leaves it out means the same."""
    former = {name: cls for each in CALL_MODULES for name, cls in messages_of(module(each))}
    checked = 0
    for name, cls in (found for each in table.CALL_MODULES for found in messages_of(each)):
        if name not in former:
            continue
        there = {field.name for field in fields(former[name])}
        for field in fields(cls):
            if field.name not in there:
                assert getattr(from_proto(cls, b""), field.name) == field.default, f"{name}.{field.name}"
                checked += 1
    assert checked > 10
