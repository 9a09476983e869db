"""Moves of logs from one directory of a node to another (KIP-113), and how they survive a crash.

A log ``t-0`` in directory S moves to D like this; ``<id>`` is the move's own:

=====================================================  ================================  ====================
step                                                   S holds                           D holds
=====================================================  ================================  ====================
the copy begins, and follows the log                   ``t-0``                           ``t-0.<id>-future``
it has all records, and the log's state durably        ``t-0``                           ``t-0.<id>-future``
**the move is decided** by a rename, durably           ``t-0.<id>-moved``                ``t-0.<id>-future``
the copy gets its name, durably                        ``t-0.<id>-moved``                ``t-0``
the controller knows: the old files go                                                   ``t-0``
=====================================================  ================================  ====================

So exactly one of the two is the log at any time: ``t-0`` in S while it exists, else the copy with the same id. At
start, decided moves are finished, and undecided ones continue.

The old files in S stay until the controller knows that the log is in D. If D fails before that and the node starts
without it, they show that the log is elsewhere: the controller still expects it in S, and a new, empty log there would
pass for the complete one.

Kafka's ``ReplicaAlterLogDirsThread`` and ``LogManager.replaceCurrentWithFutureLog`` name the copy before they remove
the original, so a crash in between leaves two, and Kafka does not start.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import DirectoryId, TopicIdPartition, TopicPartition
from tidelog.storage.disk.files import FileLayer
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_directory import DELETE_SUFFIX, NAME_BYTES_MAX, LogDirectory
from tidelog.storage.log.movable_log import agreed_end

FUTURE_SUFFIX: Final = "-future"
MOVED_SUFFIX: Final = "-moved"
_ID_BYTES: Final = 8
_SIDE_NAME: Final = re.compile(rf"(.+)-(\d+)\.([0-9a-f]{{{2 * _ID_BYTES}}})({FUTURE_SUFFIX}|{MOVED_SUFFIX})")

logger = logging.getLogger(__name__)


class SideName(NamedTuple):
    """The name of a move's directory: its partition, its move and its kind."""

    partition: TopicPartition
    move_id: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.partition}.{self.move_id}{self.suffix}"


def side_name(entry: str) -> SideName | None:
    """Return the move that a directory's name belongs to; None if it is no move's directory."""
    match = _SIDE_NAME.fullmatch(entry)
    return None if match is None else SideName(TopicPartition(match[1], int(match[2])), match[3], match[4])


Copy = tuple[SideName, Log, LogDirectory]
"""A copy found at start."""


class Move(NamedTuple):
    """A moving log. ``copy`` follows it in ``target``."""

    move_id: str
    log: Log
    copy: Log
    source: LogDirectory
    target: LogDirectory

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        return max(0, self.log.log_end_offset - self.copy.log_end_offset)


class _Left(NamedTuple):
    """A move's directory on disk, with or without the log."""

    name: SideName
    directory: LogDirectory

    @property
    def path(self) -> str:
        return f"{self.directory.path}/{self.name}"


class Logs(Protocol):
    """The methods that moves need of the log manager."""

    def make_copy(self, directory: LogDirectory, log: Log, path: str) -> Log:
        """Return a new, empty log for a copy; it starts where the log does. Raises ``OSError``."""

    def lies_in(self, log: Log) -> LogDirectory:
        """Return the directory of a log in service."""

    def now_lies_in(self, log: Log, directory: LogDirectory) -> None:
        """Note that a log is in another directory, or is now in service."""


class LogMoves:
    """Owns the copies, and the leftovers of moves. Runs on the logs' thread.

    ``on_moved`` is called with a log after its move, and the id of its new directory.
    """

    def __init__(self, files: FileLayer, clock: Clock, rng: random.Random, logs: Logs) -> None:
        self._files = files
        self._clock = clock
        self._rng = rng
        self._logs = logs
        self._moves: dict[TopicIdPartition, Move] = {}
        self._aligned: dict[TopicIdPartition, int] = {}
        """For moves whose copy is known to agree with the log: how often the log had been truncated then."""
        self._left: dict[TopicIdPartition, list[_Left]] = {}
        """The directories to delete once the controller knows where the log is; they hold the log's data if the log
        itself is out of service."""
        self.on_moved: Callable[[TopicIdPartition, DirectoryId], None] = lambda key, directory_id: None

    # --- What is under way -----------------------------------------------------------------------

    @property
    def under_way(self) -> Mapping[TopicIdPartition, Move]:
        """The undecided moves."""
        return self._moves

    def partitions(self) -> Sequence[TopicIdPartition]:
        """Return the partitions with move directories, with or without the log."""
        return tuple(dict.fromkeys((*self._moves, *self._left)))

    def copies_in(self, directory: LogDirectory) -> tuple[Move, ...]:
        return tuple(move for move in self._moves.values() if move.target is directory)

    def left_in(self, key: TopicIdPartition, directory_id: DirectoryId | None) -> LogDirectory | None:
        """Return the directory with that id if the log was moved from there and the controller may not know."""
        for left in self._left.get(key, ()):
            if left.name.suffix == MOVED_SUFFIX and left.directory.directory_id == directory_id:
                return left.directory
        return None

    # --- Steps of a move -------------------------------------------------------------------------

    def begin(self, log: Log, source: LogDirectory, target: LogDirectory) -> Refusal | None:
        """Start to move a log, replacing a move in progress. Its current directory as the target cancels the move.

        Raises :class:`LogDirFailed`.
        """
        key = TopicIdPartition(log.topic_id, log.partition)
        before = self._moves.get(key)
        if before is not None and before.target is target:
            return None
        name = SideName(log.name, self._rng.randbytes(_ID_BYTES).hex(), FUTURE_SUFFIX)
        over = len(f"{name}{DELETE_SUFFIX}") - NAME_BYTES_MAX
        if target is not source and over > 0:
            length = len(str(log.name))
            return Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"expected at most {length - over} characters in {log.name}, so that a copy can be named after it, "
                f"found {length}",
            )
        if before is not None:
            self.give_up(key)
        if target is source:
            return None
        try:
            copy = self._logs.make_copy(target, log, f"{target.path}/{name}")
        except OSError as error:
            raise target.fail(error) from error
        target.logs[log.name] = copy
        log.hold_still(moving=True)
        self._moves[key] = Move(name.move_id, log, copy, source, target)
        logger.info("%s moves from %s to %s", log.name, source.path, target.path)
        return None

    def give_up(self, key: TopicIdPartition) -> None:
        """Cancel an undecided move, if there is one, and delete its copy. Raises :class:`LogDirFailed`."""
        move = self._forget(key)
        if move is None:
            return
        move.copy.abandon()
        del move.target.logs[move.log.name]
        self._remove(_Left(SideName(move.log.name, move.move_id, FUTURE_SUFFIX), move.target))

    def copy(self, key: TopicIdPartition, bytes_max: int) -> int | Refusal:
        """Copy at most ``bytes_max`` bytes, or one larger batch. Returns the number of bytes; 0 if the copy is
        complete. CORRUPT_MESSAGE if the log is damaged.

        Raises :class:`LogDirFailed`.
        """
        move = self._moves[key]
        log, copy = move.log, move.copy
        self._align(key, move)
        copy.update_config(log.config)
        if copy.log_end_offset >= log.log_end_offset:
            return 0
        read = log.read(copy.log_end_offset, bytes_max, offset_end=log.log_end_offset)
        if not isinstance(read, Refusal) and len(read.records):
            read = log.checked(read, copy.log_end_offset)
        if isinstance(read, Refusal):
            return read
        appended = copy.append_as_follower(read.records, self._clock.now_ms(), takes_gaps=log.is_sparse)
        return appended if isinstance(appended, Refusal) else len(read.records)

    def _align(self, key: TopicIdPartition, move: Move) -> None:
        """Truncate what the log does not (or no longer) hold, and match its start."""
        log, copy = move.log, move.copy
        start = log.log_start_offset
        if self._aligned.get(key) != log.cuts:
            end = min(log.log_end_offset, copy.log_end_offset)
            same = agreed_end(log.epoch_entries, copy.epoch_entries, max(start, copy.log_start_offset), end)
            if same < copy.log_end_offset:
                copy.truncate_to(same)
            self._aligned[key] = log.cuts
        if not copy.log_start_offset <= start <= copy.log_end_offset:
            copy.truncate_fully_and_start_at(start)
        copy.advance_log_start(start)

    def is_ready(self, key: TopicIdPartition) -> bool:
        """Return whether the move may be decided now: the copy is complete, no data is missing that may still be found,
        and the controller knows of the last move."""
        move = self._moves[key]
        log, copy = move.log, move.copy
        return (
            self._aligned.get(key) == log.cuts
            and (copy.log_start_offset, copy.log_end_offset) == (log.log_start_offset, log.log_end_offset)
            and not log.is_new
            and not log.damage
            and not log.producers_lack
            and key not in self._left
        )

    def decide(self, key: TopicIdPartition) -> None:
        """Switch a ready log to the other directory.

        Raises :class:`LogDirFailed`: for the old directory, and nothing is decided, or for the new one.
        """
        assert self.is_ready(key), f"{key} is not ready"
        move = self._moves[key]
        log, copy, source, target = move.log, move.copy, move.source, move.target
        copy.become_copy_of(log)
        target.take_points_of(log.name, source)
        left = _Left(SideName(log.name, move.move_id, MOVED_SUFFIX), source)
        try:
            self._files.rename(log.directory, left.path)
            self._files.fsync_dir(source.path)
        except OSError as error:
            raise source.fail(error) from error
        # From here on the copy is the log, whatever happens.
        self._forget(key)
        self._left.setdefault(key, []).append(left)
        log.go_on_as(copy, target)
        self._logs.now_lies_in(log, target)
        self.on_moved(key, target.directory_id)
        self._name(target, log)
        logger.info("%s has moved from %s to %s", log.name, source.path, target.path)
        try:
            source.forget(log.name)
        except OSError as error:
            source.fail(error)

    def settle(self, key: TopicIdPartition) -> None:
        """Delete the leftovers of moves, as the controller knows where the log is.

        A directory that fails goes out of service; nothing is raised.
        """
        for left in self._left.pop(key, ()):
            try:
                if left.directory.failure is None:
                    self._remove(left)
            except LogDirFailed:
                continue

    def drop(self, key: TopicIdPartition) -> None:
        """Delete everything that moves have made, before the log is deleted or created again.

        A directory that fails goes out of service; nothing is raised.
        """
        try:
            self.give_up(key)
        except LogDirFailed:
            pass
        self.settle(key)

    def directory_failed(self, directory: LogDirectory) -> None:
        """End moves from and to a failed directory. Nothing changes on disk, so a start with a working directory
        continues them."""
        for key, move in tuple(self._moves.items()):
            if directory in (move.source, move.target):
                self._forget(key)
                move.copy.abandon()
                move.target.logs.pop(move.log.name, None)

    def clear(self) -> None:
        self._moves.clear()
        self._left.clear()

    # --- Start -----------------------------------------------------------------------------------

    def found_left(self, key: TopicIdPartition, name: SideName, directory: LogDirectory) -> None:
        """Note a move's leftover, found at start."""
        self._left.setdefault(key, []).append(_Left(name, directory))

    def resume(
        self, copies: Sequence[Copy], logs: Mapping[TopicIdPartition, Log], directories: Sequence[LogDirectory]
    ) -> None:
        """Resume the copies found at start: decided moves are finished, undecided ones continue.

        ``logs``: the logs found at start; ``directories``: those in service. Copies of logs that are out of service
        wait on disk.
        """
        if copies or self._left:
            self._make_durable(directories)
        for name, copy, target in copies:
            if target.failure is not None:
                continue
            key = TopicIdPartition(copy.topic_id, copy.partition)
            log = logs.get(key)
            try:
                if log is None and self._is_decided(key, name):
                    self._logs.now_lies_in(copy, target)
                    self._name(target, copy)
                elif log is None:
                    copy.abandon()
                    del target.logs[copy.name]
                    self.found_left(key, name, target)
                elif key in self._moves or self._logs.lies_in(log) is target:
                    copy.abandon()
                    del target.logs[copy.name]
                    self._remove(_Left(name, target))
                else:
                    source = self._logs.lies_in(log)
                    log.hold_still(moving=True)
                    self._moves[key] = Move(name.move_id, log, copy, source, target)
                    logger.info("%s goes on moving to %s", log.name, target.path)
            except LogDirFailed:
                continue

    def _make_durable(self, directories: Sequence[LogDirectory]) -> None:
        """Make the names found at start durable before acting on them. A killed process may not have synced them, and a
        move that a power loss can undo is not decided."""
        for directory in directories:
            try:
                self._files.fsync_dir(directory.path)
            except OSError as error:
                directory.fail(error)

    def _is_decided(self, key: TopicIdPartition, name: SideName) -> bool:
        return any(
            left.name.suffix == MOVED_SUFFIX and left.name.move_id == name.move_id and left.directory.failure is None
            for left in self._left.get(key, ())
        )

    # --- Inside ----------------------------------------------------------------------------------

    def _forget(self, key: TopicIdPartition) -> Move | None:
        move = self._moves.pop(key, None)
        self._aligned.pop(key, None)
        if move is not None:
            move.log.hold_still(moving=False)
        return move

    def _name(self, target: LogDirectory, log: Log) -> None:
        """Give a copy the log's name, durably."""
        former = log.directory
        log.renamed_to(f"{target.path}/{log.name}")
        try:
            self._files.rename(former, log.directory)
            self._files.fsync_dir(target.path)
        except OSError as error:
            raise target.fail(error) from error

    def _remove(self, left: _Left) -> None:
        """Remove a move's directory, durably: a copy that came back would look like a wanted one."""
        path = f"{left.path}{DELETE_SUFFIX}"
        try:
            self._files.rename(left.path, path)
            self._files.fsync_dir(left.directory.path)
        except OSError as error:
            raise left.directory.fail(error) from error
        left.directory.remove_later(path, 0)
