"""pysyncobj's Raft engine, pinned, in a private copy of its module, isolated from everything that it must not use.

The hardening in :mod:`tidelog.metadata_quorum.raft.engine` overrides private methods, so the version is exact. The
module is loaded again under a private name and its globals are replaced there: time is the step's, the journal and the
snapshot sender are ours, and pickle, sockets, forks, thread sleeps, DNS and its own files raise if they are ever
reached. A user's own pysyncobj in the same process is unaffected.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from tidelog.metadata_quorum.raft.journal import JournalEntry, RaftJournal
from tidelog.metadata_quorum.raft.types import QuorumFailure, QuorumLimits
from tidelog.model.ids import NodeId
from tidelog.model.voter_set import Voter

PINNED_VERSION: Final = "0.3.17"

if VERSION != PINNED_VERSION:
    raise ImportError(
        f"expected pysyncobj {PINNED_VERSION}, found {VERSION}: the quorum replaces private parts of exactly that "
        "version; another one needs its safety tests run again"
    )

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

REGULAR_COMMAND: Final = b"\x00"
EMPTY_COMMAND: Final = b"\x01"
"""First byte of an entry's command, pysyncobj's ``_COMMAND_TYPE``."""

SUCCESS: Final[int] = FAIL_REASON.SUCCESS
DISCARDED: Final[int] = FAIL_REASON.DISCARDED
QUEUE_FULL: Final[int] = FAIL_REASON.QUEUE_FULL

_step = threading.local()


class _CutOff:
    """Replaces a module or function that the engine must never reach."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: object, **_named: object) -> Any:
        raise QuorumFailure(f"the Raft engine reached {self._name}, which is cut off")

    def __getattr__(self, attribute: str) -> Any:
        raise QuorumFailure(f"the Raft engine reached {self._name}.{attribute}, which is cut off")


class _NoDns:
    def setTimeouts(self, *_timeouts: float) -> None:  # noqa: N802
        """Do nothing: the engine sets timeouts first of all; no name is ever resolved."""

    def setPreferredAddrFamily(self, _family: object) -> None:  # noqa: N802
        """Do nothing; see above."""


class _NoPoller:
    def poll(self, _timeout: float) -> None:
        """Do nothing: the driver does the waiting."""


class Peer(Node):  # type: ignore[misc]  # pysyncobj is not typed
    """A controller with one directory as pysyncobj knows it; each has one object, the key of many maps."""

    def __init__(self, voter: Voter) -> None:
        super().__init__(voter.node_id)
        self.voter = voter

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Peer) and self.voter == other.voter)

    def __hash__(self) -> int:
        return int(self._id)


def set_step_time(now: float) -> None:
    """Set the time, in seconds, that the engine sees in this thread until the next call."""
    _step.now = now


def step_time() -> float:
    """Return the time of the step that runs in this thread."""
    now: float = _step.now
    return now


def _load_private_copy() -> ModuleType:
    name = "pysyncobj._tidelog_private_syncobj"  # inside the package: its imports are relative
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    assert spec is not None
    assert spec.origin is not None
    private = importlib.util.spec_from_file_location(name, Path(spec.origin))
    assert private is not None
    assert private.loader is not None
    module = importlib.util.module_from_spec(private)
    sys.modules[name] = module
    private.loader.exec_module(module)
    replaced: dict[str, object] = {
        "monotonicTime": step_time,
        "createJournal": lambda journal: journal,
        "createPoller": lambda _kind: _NoPoller(),
        "Serializer": lambda sender, *_rest: sender,
        "globalDnsResolver": _NoDns,
    }
    for cut_off in ("pickle", "random", "time", "os", "PipeNotifier", "TCPTransport", "getEncryptor", "TCPNode"):
        replaced[cut_off] = _CutOff(cut_off)
    for attribute, value in replaced.items():
        assert hasattr(module, attribute), attribute
        setattr(module, attribute, value)
    return module


_Base: Final[Any] = _load_private_copy().SyncObj


class PinnedSyncObj(_Base):  # type: ignore[misc]  # pysyncobj is not typed
    """The engine's private state under our own names; adds no behaviour."""

    _limits: QuorumLimits
    _SyncObj__raftState: int
    _SyncObj__raftLog: RaftJournal
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: NodeId | None
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Peer, int]
    _SyncObj__raftMatchIndex: dict[Peer, int]
    _SyncObj__lastResponseTime: dict[Peer, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__connectedNodes: set[Peer]
    _SyncObj__otherNodes: set[Peer]
    """The voters in force without this node: pysyncobj counts their votes."""
    _SyncObj__readonlyNodes: set[Peer]
    """Controllers that follow without a vote: pysyncobj sends to these too."""
    _SyncObj__leaderCommitIndex: int | None
    _SyncObj__noopIDx: int | None
    _SyncObj__needLoadDumpFile: bool

    @property
    def is_leader(self) -> bool:
        return self._SyncObj__raftState == LEADER

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def leader_id(self) -> NodeId | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.voter.node_id

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def journal(self) -> RaftJournal:
        return self._SyncObj__raftLog

    def _SyncObj__getEntries(  # noqa: N802
        self,
        from_index: int | None,
        count: int | None = None,
        maxSizeBytes: int | None = None,  # noqa: N803
    ) -> list[JournalEntry]:
        """Return entries without copying the rest of the log; the original copies it for each batch."""
        if from_index is None:
            return []
        bytes_max = self._limits.batch_bytes if maxSizeBytes is not None else 1 << 62
        return self.journal.entries_from(from_index, count if count is not None else 1 << 62, bytes_max)


__all__ = [
    "CANDIDATE",
    "DISCARDED",
    "EMPTY_COMMAND",
    "FOLLOWER",
    "LEADER",
    "PINNED_VERSION",
    "QUEUE_FULL",
    "REGULAR_COMMAND",
    "SUCCESS",
    "Node",
    "Peer",
    "PinnedSyncObj",
    "SyncObjConf",
    "Transport",
    "set_step_time",
    "step_time",
]
