"""The demo's last step: a group of three processes reads everything back; one of them is killed halfway."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.demo.log.group_judge import GroupVerdict, Handed, judge_group
from tidelog.demo.log.group_reader import ENTRY, entries
from tidelog.demo.log.row_judge import LogRecord

if TYPE_CHECKING:
    from tidelog import Admin

GROUP: Final = "flight-readers"
READERS: Final = ("reader-1", "reader-2", "reader-3")
READ_S: Final = 5.0
"""How long three readers take for everything at their pace."""
KILL_AT: Final = 0.4
JOIN_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 20.0
ASK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class GroupReadResult:
    """The result. Times in seconds."""

    verdict: GroupVerdict
    joined_s: float
    """Time until all three had partitions."""
    killed: str
    killed_at: int
    """Records delivered to the group by then."""
    read_on_s: float | None
    """Time from the kill until another member got a record of the dead one's partitions."""
    total_s: float
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.verdict.passed and not self.failures


@dataclass(slots=True)
class _Reader:
    name: str
    path: Path
    process: subprocess.Popen[bytes]
    handed: list[Handed] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """The offset after its last record, by partition."""

    def collect(self) -> None:
        """Read the entries that the process has saved since."""
        with self.path.open("rb") as written:
            written.seek(len(self.handed) * ENTRY.size)
            for one in entries(written.read()):
                self.handed.append(one)
                self.ends[one.partition] = one.offset + 1


def read_in_group(
    admin: Admin,
    bootstrap: str,
    directory: Path,
    topic: str,
    log: Sequence[LogRecord],
    ends: Mapping[int, tuple[int, int]],
    say: Callable[[str], None],
) -> GroupReadResult:
    """Read ``topic`` in a group and judge it by ``log``, its known content; ``ends`` as for the judge.

    Raises :class:`WatchFailed` if an expected event does not happen. Leaves no process behind.
    """
    started = time.monotonic()
    with _readers(bootstrap, directory, topic, len(log) / READ_S / len(READERS)) as readers:
        owned = _wait_joined(admin, readers, ends)
        joined_s = time.monotonic() - started
        say(f"a group of {len(READERS)} reads {topic}: {', '.join(f'{n} {sorted(p)}' for n, p in owned.items())}")

        def progress() -> str:
            return ", ".join(f"{reader.name} was handed {len(reader.handed):,}" for reader in readers)

        wait_until(
            f"{KILL_AT:.0%} of the records to be read", lambda: _handed(readers) >= KILL_AT * len(log),
            READ_TIMEOUT_S, progress,
        )  # fmt: skip
        victim = max(readers, key=lambda reader: len(reader.handed))
        victim.process.kill()
        victim.process.wait()
        killed = time.monotonic()
        victim.collect()
        committed = _committed(admin, topic)
        survivors = [reader for reader in readers if reader is not victim]
        killed_at = _handed(readers)
        say(f"{victim.name}: kill -9 at record {killed_at:,}; it had been handed {len(victim.handed):,}")
        theirs = {number: _furthest(survivors, number) for number in owned[victim.name]}
        read_on_s: float | None = None
        stands, asked = committed, time.monotonic()

        def read_all() -> bool:
            nonlocal read_on_s, stands, asked
            _handed(readers)
            now = time.monotonic()
            if read_on_s is None and any(_furthest(survivors, number) != before for number, before in theirs.items()):
                read_on_s = now - killed
            if now - asked > ASK_S:  # the dead member's last commit may have arrived after its death
                stands, asked = _committed(admin, topic), now
            return all(max(_furthest(survivors, p), stands.get(p, 0)) >= end for p, (_, end) in ends.items())

        wait_until("the group to read everything", read_all, READ_TIMEOUT_S, progress)
        failures = _end(survivors)
        _handed(readers)
        stands = _committed(admin, topic)
        left = {p: end - stands.get(p, 0) for p, (_, end) in ends.items()}
        if any(left.values()):
            failures.append(f"expected everything committed at the end, found a lag of {left}")
        verdict = judge_group(log, {reader.name: reader.handed for reader in readers}, victim.name, committed)
    total_s = time.monotonic() - started
    again = "nothing was left" if read_on_s is None else f"read on after {read_on_s:.2f} s"
    say(f"the partitions of {victim.name}: {again}; {verdict.handed:,} records handed out in {total_s:.1f} s")
    return GroupReadResult(verdict, joined_s, victim.name, killed_at, read_on_s, total_s, tuple(failures))


@contextmanager
def _readers(bootstrap: str, directory: Path, topic: str, rate: float) -> Iterator[list[_Reader]]:
    directory.mkdir(parents=True, exist_ok=True)
    readers: list[_Reader] = []
    try:
        for name in READERS:
            path = directory / f"{name}.handed"
            path.touch()
            command = [sys.executable, "-P", "-m", "tidelog.demo.log.group_reader"]
            with (directory / f"{name}.err").open("wb") as err:
                process = subprocess.Popen(
                    [*command, bootstrap, topic, GROUP, name, str(rate), str(path)],
                    stdin=subprocess.PIPE, stdout=err, stderr=err, start_new_session=True,
                )  # fmt: skip
            readers.append(_Reader(name, path, process))
        yield readers
    finally:
        for reader in readers:
            reader.process.kill()
            reader.process.wait()
            assert reader.process.stdin is not None
            reader.process.stdin.close()


def _wait_joined(
    admin: Admin, readers: Sequence[_Reader], ends: Mapping[int, tuple[int, int]]
) -> dict[str, frozenset[int]]:
    """Wait until every reader has partitions; return them."""
    from tidelog.client.admin.group_types import GroupState
    from tidelog.client.errors import GroupIdNotFoundError

    owned: dict[str, frozenset[int]] = {}

    def joined() -> bool:
        _handed(readers)
        try:
            group = admin.describe_consumer_groups([GROUP])[GROUP]
        except GroupIdNotFoundError:
            return False
        owned.clear()
        for member in group.members:
            owned[member.client_id] = frozenset(at.partition for at in member.assignment or ())
        together = sorted(number for numbers in owned.values() for number in numbers)
        return group.state is GroupState.STABLE and len(owned) == len(readers) and together == sorted(ends)

    wait_until(f"{len(readers)} members of the group with partitions", joined, JOIN_TIMEOUT_S, lambda: str(owned))
    return {name: owned[name] for name in sorted(owned)}


def _handed(readers: Sequence[_Reader]) -> int:
    """Return how many records have been delivered. Raises :class:`WatchFailed` if a reader ended by itself."""
    for reader in readers:
        reader.collect()
        code = reader.process.poll()
        if code is not None and code > 0:
            words = reader.path.with_suffix(".err").read_text(errors="replace").strip().splitlines()
            raise WatchFailed(f"{reader.name} ended with exit code {code}: {words[-1] if words else 'no word'}")
    return sum(len(reader.handed) for reader in readers)


def _furthest(readers: Sequence[_Reader], partition: int) -> int:
    return max(reader.ends.get(partition, 0) for reader in readers)


def _committed(admin: Admin, topic: str) -> dict[int, int]:
    found = admin.list_consumer_group_offsets(GROUP)
    return {at.partition: one.offset for at, one in found.items() if at.topic == topic}


def _end(readers: Sequence[_Reader]) -> list[str]:
    """Let readers leave cleanly; return what went wrong."""
    for reader in readers:
        assert reader.process.stdin is not None
        reader.process.stdin.close()
    failures = []
    for reader in readers:
        try:
            code = reader.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            failures.append(f"{reader.name} did not end within {END_TIMEOUT_S:g} s")
            continue
        if code:
            words = reader.path.with_suffix(".err").read_text(errors="replace").strip().splitlines()
            failures.append(f"{reader.name} ended with exit code {code}: {words[-1] if words else 'no word'}")
    return failures
