"""Sends leaders' ISR changes to the controller: one request in flight, batched, retried.

Source: KIP-497, ``AlterPartitionManager`` and ``Partition.handleAlterPartitionUpdate``. A change has no effect until
the controller's answer, or newer metadata, says that it is committed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicIdPartition
from tidelog.proto.calls.controller_api import AlteredPartition, AlterPartitionItem, AlterPartitionResponse
from tidelog.proto.transport.network import CallTimeout, ConnectionLost
from tidelog.replication.partition.isr import IsrProposal
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings

log = logging.getLogger(__name__)

AlterPartition = Callable[[tuple[AlterPartitionItem, ...]], Awaitable[AlterPartitionResponse]]
"""Sends ISR changes to the active controller. Raises ``ConnectionLost`` or ``CallTimeout``: outcome unknown."""

REFUSED: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""The controller considered the change and rejected it."""
SUPERSEDED: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The controller knows newer state of the partition; that state is on its way here and decides."""


class IsrChanges:
    """Pending changes, at most one per partition, and the task that sends them to the controller."""

    def __init__(
        self,
        alter_partition: AlterPartition,
        settings: ReplicationSettings,
        rng: random.Random,
        settled: Callable[[Replica], None],
    ) -> None:
        """``settled`` is called when a partition's ISR is newly committed, or may be proposed again."""
        self._alter_partition = alter_partition
        self._settings = settings
        self._rng = rng
        self._settled = settled
        self._waiting: dict[Replica, IsrProposal] = {}
        self._wake = asyncio.Event()
        self.failures = 0

    def submit(self, replica: Replica, proposal: IsrProposal) -> None:
        self._waiting[replica] = proposal
        self._wake.set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        """Send pending changes until cancelled."""
        settings = self._settings
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                if await self._send(batch):
                    failures = 0
                    continue
                failures += 1
                self.failures += 1
                pause_ms = min(settings.retry_first_ms << min(failures, 16), settings.replica_fetch_backoff_ms)
                await asyncio.sleep(pause_ms * self._rng.uniform(0.5, 1.0) / 1000)

    def _next_batch(self) -> dict[Replica, IsrProposal]:
        batch: dict[Replica, IsrProposal] = {}
        for replica, proposal in tuple(self._waiting.items()):
            if not _is_current(replica, proposal):
                del self._waiting[replica]
            elif len(batch) < self._settings.alter_partition_items_max:
                batch[replica] = proposal
        return batch

    async def _send(self, batch: dict[Replica, IsrProposal]) -> bool:
        """Send one request. Returns False if part of it must be retried."""
        try:
            response = await self._alter_partition(tuple(_item(replica, change) for replica, change in batch.items()))
        except (ConnectionLost, CallTimeout) as error:
            log.info("ISR change of %d partitions: %s; trying again", len(batch), error)
            for proposal in batch.values():
                proposal.uncertain = True
            return False
        if response.error is not ErrorCode.NONE:
            log.info("ISR change of %d partitions: %s; trying again", len(batch), response.error.name)
            return False
        answers = {TopicIdPartition(item.topic_id, item.partition): item for item in response.partitions}
        complete = True
        for replica, proposal in batch.items():
            answer = answers.get(replica.key)
            if answer is None or not self._take(replica, proposal, answer):
                complete = False
        return complete

    def _take(self, replica: Replica, proposal: IsrProposal, answer: AlteredPartition) -> bool:
        """Process one answer. Returns False if the change must be retried."""
        if not _is_current(replica, proposal):
            self._drop(replica, proposal)
            return True
        if answer.error is ErrorCode.NONE:
            if replica.partition.isr_committed(answer.isr, answer.leader_epoch, answer.partition_epoch):
                self._drop(replica, proposal)
                self._settled(replica)
                return True
            # The answer is about an older state than the known one; the proposal was not part of it.
            return False
        if answer.error in SUPERSEDED:
            log.info("ISR change of %s: %s; waiting for newer metadata", replica.key, answer.error.name)
            self._drop(replica, proposal)
            return True
        if answer.error in REFUSED:
            leading = replica.partition.leading
            assert leading is not None
            if not leading.isr.refused(proposal):
                return False
            self._drop(replica, proposal)
            self._settled(replica)
            # A change that is immediately proposed and refused again must not cause a stream of requests.
        return False

    def _drop(self, replica: Replica, proposal: IsrProposal) -> None:
        if self._waiting.get(replica) is proposal:
            del self._waiting[replica]


def _is_current(replica: Replica, proposal: IsrProposal) -> bool:
    leading = replica.partition.leading
    return leading is not None and leading.isr.proposal is proposal


def _item(replica: Replica, proposal: IsrProposal) -> AlterPartitionItem:
    leading = replica.partition.leading
    assert leading is not None
    return AlterPartitionItem(
        replica.key.topic_id,
        replica.key.partition,
        leading.epoch,
        proposal.members,
        proposal.partition_epoch,
    )
