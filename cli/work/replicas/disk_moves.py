"""Moves replicas between the log directories of one broker, and tracks their progress.

All state is in the cluster: where replicas are and where they move to. So an interrupted command can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.output import count_of, megabytes
from tidelog.cli.work.replicas.moving import POLL_S, PROGRESS_S, name_of, names_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.api import ConfigResource, LogDir

if TYPE_CHECKING:
    from tidelog import Admin

THROTTLE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica: its directory, its bytes, and its move's target, if it is moving."""

    path: str
    size: int
    moves_to: str | None = None
    copied: int = 0
    lag: int = 0


Replicas = Mapping[TopicPartition, Placed]


def replicas_in(dirs: Iterable[LogDir]) -> dict[TopicPartition, Placed]:
    """Return the replicas of a broker."""
    found = {}
    copies = {}
    for directory in dirs:
        for one in directory.replicas:
            at = TopicPartition(one.topic, one.partition)
            if one.is_future:
                copies[at] = (directory.path, one.size_bytes, one.offset_lag)
            else:
                found[at] = Placed(directory.path, one.size_bytes)
    return {at: Placed(one.path, one.size, *copies[at]) if at in copies else one for at, one in sorted(found.items())}


def spread(replicas: Replicas, dirs: Sequence[LogDir]) -> dict[TopicPartition, str]:
    """Choose a directory for each replica: the largest replica first, each where the most room is left by then.
    Pure."""
    room = {directory.path: directory.usable_bytes for directory in dirs}
    found = {}
    for at, one in sorted(replicas.items(), key=lambda item: (-item[1].size, item[0])):
        path = max(room, key=lambda path: room[path])
        room[path] -= one.size
        found[at] = path
    return dict(sorted(found.items()))


def check_room(wanted: Mapping[TopicPartition, str], replicas: Replicas, dirs: Iterable[LogDir]) -> None:
    """Raise :class:`CommandFailed` if a directory is too small for the replicas that it would get."""
    for directory in dirs:
        coming = sum(replicas[at].size for at, path in wanted.items() if path == directory.path)
        if directory.usable_bytes >= 0 and coming > directory.usable_bytes:
            raise CommandFailed(
                f"expected room for {megabytes(coming)} in {directory.path}, found "
                f"{megabytes(directory.usable_bytes)}: name another directory with --to, or fewer topics"
            )


def check_paths(dirs: Iterable[LogDir], paths: Iterable[str]) -> None:
    """Raise :class:`CommandFailed` unless each path is one of the broker's directories, and in service."""
    errors = {directory.path: directory.error for directory in dirs}
    for path in paths:
        if path not in errors:
            raise CommandFailed(f"expected one of the broker's log directories, {', '.join(errors)}, found {path}")
        if errors[path] is not ErrorCode.NONE:
            raise CommandFailed(f"expected a log directory in service, found {path}, which has failed")


class DiskMover:
    """Carries out moves on one broker."""

    def __init__(self, admin: Admin, node: int, tell: Callable[[str], None]) -> None:
        self._admin = admin
        self._node = node
        self._tell = tell

    def dirs(self) -> tuple[LogDir, ...]:
        (found,) = self._admin.describe_log_dirs([self._node]).values()
        return found

    def throttle(self, rate: int | None) -> None:
        """Set the throttle in bytes per second; None removes it."""
        at = ConfigResource("broker", str(self._node))
        self._admin.alter_configs({at: {THROTTLE: None if rate is None else str(rate)}})

    def begin(self, wanted: Mapping[TopicPartition, str]) -> None:
        """Start the moves. A move to the current directory cancels one in progress."""
        from tidelog.model.errors import TidelogError

        try:
            self._admin.alter_replica_log_dirs({(*at, self._node): path for at, path in wanted.items()})
        except TidelogError as error:
            gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE)
            if not error.failures or any(each.code not in gone for each in error.failures.values()):
                raise

    def wait(self, wanted: Mapping[TopicPartition, str], size: int) -> None:
        """Return once each of these replicas is in its directory, or has left this broker."""
        told_at = monotonic()
        try:
            while True:
                dirs = self.dirs()
                replicas = replicas_in(dirs)
                left = {at: replicas[at] for at, path in wanted.items() if at in replicas and replicas[at].path != path}
                if not left:
                    return
                _check_working(wanted.values(), dirs)
                if stopped := [at for at, one in left.items() if one.moves_to is None]:
                    raise CommandFailed(
                        f"expected {names_of(stopped)} to be moving, found that somebody else has cancelled that: "
                        "run the command again to continue"
                    )
                if monotonic() - told_at >= PROGRESS_S:
                    told_at = monotonic()
                    self._tell(_progress(wanted, left, size))
                sleep(POLL_S)
        except KeyboardInterrupt:
            self._tell(
                "interrupted: the broker continues the moves. Run the command again to watch them, or with --cancel "
                "to cancel them"
            )
            raise


def _check_working(paths: Collection[str], dirs: Iterable[LogDir]) -> None:
    for directory in dirs:
        if directory.path in paths and directory.error is not ErrorCode.NONE:
            raise CommandFailed(f"the log directory {directory.path} has failed: other brokers supply its replicas")


def _progress(wanted: Mapping[TopicPartition, str], left: Replicas, size: int) -> str:
    missing = sum(max(one.size - one.copied, 0) for one in left.values())
    under_way = ", ".join(f"{name_of(at)} ({one.lag:,} offsets behind)" for at, one in list(left.items())[:3])
    return (
        f"{len(wanted) - len(left):,} of {count_of(len(wanted), 'replica')} moved, {megabytes(max(size - missing, 0))} "
        f"of {megabytes(size)}; under way: {under_way}{', …' if len(left) > 3 else ''}"
    )


class Directories:
    """The directories that a reassignment names, by broker, for existing and future replicas."""

    def __init__(self, admin: Admin, wanted: Mapping[int, Mapping[TopicPartition, str]]) -> None:
        self._wanted = wanted
        self._movers = {node: DiskMover(admin, node, lambda _: None) for node in sorted(wanted)}

    def check(self) -> dict[int, dict[TopicPartition, str]]:
        """Return where the replicas of these partitions are now. Raises :class:`CommandFailed` for a directory that
        does not exist, has failed or has too little room."""
        before = {}
        for node, mover in self._movers.items():
            dirs, wanted = mover.dirs(), self._wanted[node]
            replicas = replicas_in(dirs)
            try:
                check_paths(dirs, wanted.values())
                check_room(_to_move(wanted, replicas), replicas, dirs)
            except CommandFailed as failed:
                raise CommandFailed(f"broker {node}: {failed}") from None
            before[node] = {at: replicas[at].path for at in wanted if at in replicas}
        return before

    def begin(self, rate: int | None) -> None:
        """Start moving existing replicas; future ones will be created in their directory. ``rate``: how much each
        broker may copy, in bytes per second."""
        for node, mover in self._movers.items():
            if rate is not None:
                mover.throttle(rate)
            wanted, replicas = self._wanted[node], replicas_in(mover.dirs())
            to_come = {at: path for at, path in wanted.items() if at not in replicas}
            mover.begin({**_to_move(wanted, replicas), **to_come})

    def left(self) -> dict[TopicPartition, bool]:
        """Return partitions with a replica outside its directory, and whether all such replicas are moving."""
        found: dict[TopicPartition, bool] = {}
        for node, mover in self._movers.items():
            replicas = replicas_in(mover.dirs())
            for at, path in self._wanted[node].items():
                if at not in replicas or replicas[at].path != path:
                    moves = at in replicas and replicas[at].moves_to == path
                    found[at] = found.get(at, True) and moves
        return found

    def cancel(self) -> list[TopicPartition]:
        """Cancel the moves in progress to these directories. Returns the partitions."""
        ended: set[TopicPartition] = set()
        for node, mover in self._movers.items():
            replicas = replicas_in(mover.dirs())
            stay = {
                at: replicas[at].path
                for at, path in self._wanted[node].items()
                if at in replicas and replicas[at].moves_to == path
            }
            mover.begin(stay)
            ended |= stay.keys()
        return sorted(ended)

    def lift(self) -> None:
        """Remove the throttle."""
        for mover in self._movers.values():
            mover.throttle(None)


def _to_move(wanted: Mapping[TopicPartition, str], replicas: Replicas) -> dict[TopicPartition, str]:
    """Leave out replicas that are already there or on their way."""
    return {
        at: path
        for at, path in wanted.items()
        if at in replicas and path not in (replicas[at].path, replicas[at].moves_to)
    }
