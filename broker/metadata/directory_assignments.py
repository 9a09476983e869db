"""Tells the controller which log directory holds each replica of this broker (KIP-858).

The controller must know, because a broker that loses a directory reports the directory, not its replicas. Reports are
kept until answered, one per partition, so the partitions here bound them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    DirectoryId,
    NodeId,
    TopicIdPartition,
)
from tidelog.proto.calls.controller_api import AssignReplicasToDirsRequest, DirectoryAssignment
from tidelog.replication.partition.partition_state import PartitionState

log = logging.getLogger(__name__)

TRY_TIMEOUT_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.5
ITEMS_MAX: Final = 2_250
"""Maximum replicas per request (``AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST``)."""


class DirectoryAssignments:
    """Compares the metadata with the actual places of replicas, and reports differences."""

    def __init__(
        self,
        node_id: NodeId,
        channel: ControllerChannel,
        broker_epoch: Callable[[], BrokerEpoch],
        directory_of: Callable[[TopicIdPartition], DirectoryId | None],
        offline: Callable[[DirectoryId], bool],
        settled: Callable[[TopicIdPartition], None],
    ) -> None:
        """``offline``: whether a directory is out of service here; ``settled`` gets replicas whose place the metadata
        has."""
        self._offline = offline
        self._settled = settled
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._directory_of = directory_of
        self._waiting: dict[TopicIdPartition, DirectoryId] = {}
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def moved(self, key: TopicIdPartition, directory: DirectoryId) -> None:
        """Note that a replica is in another directory from now on, even if that fails immediately."""
        self._waiting[key] = directory
        self._wake.set()

    def applied(self, states: Sequence[PartitionState]) -> None:
        """Note the current places of these replicas, where the metadata differs.

        A replica without a log is in a directory that failed. If the controller never learned which directory, the
        failure tells it nothing. So a pending report is still sent, or the replica is reported as lost; otherwise the
        controller would keep treating it as able to lead and in sync. The same goes for a replica that was moved away
        from the directory in the metadata to one that failed before the controller knew. A sole in-sync replica is not
        reported as lost: nobody could take over, and it is created once its broker starts with working directories.
        """
        for state in states:
            found = self._directory_of(state.key)
            if found is None:
                unknown = state.directory_id == UNASSIGNED_DIRECTORY or not self._offline(state.directory_id)
                if unknown and len(state.isr) > 1:
                    self._waiting.setdefault(state.key, LOST_DIRECTORY)
            elif found == state.directory_id:
                self._waiting.pop(state.key, None)
                self._settled(state.key)
            else:
                self._waiting[state.key] = found
        if self._waiting:
            self._wake.set()

    async def run(self) -> None:
        """Report until the node ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if not await self._send():
                    await asyncio.sleep(RETRY_PAUSE_S)

    async def _send(self) -> bool:
        batch = dict(list(self._waiting.items())[:ITEMS_MAX])
        epoch = self._broker_epoch()
        if epoch < 0:
            return False
        request = AssignReplicasToDirsRequest(
            self._node_id,
            epoch,
            tuple(DirectoryAssignment(directory, key.topic_id, key.partition) for key, directory in batch.items()),
        )
        try:
            answer = await self._channel.call(request, timeout_s=TRY_TIMEOUT_S)
        except ControllerUnavailable as error:
            log.info("directories of %d replicas: %s; trying again", len(batch), error)
            return False
        if answer.error is not ErrorCode.NONE:
            log.info("directories of %d replicas: %s; trying again", len(batch), answer.error.name)
            return False
        for key, directory in batch.items():
            if self._waiting.get(key) == directory:
                del self._waiting[key]
        return True
