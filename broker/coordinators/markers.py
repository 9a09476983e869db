"""Delivers the markers of ended transactions to the leaders of their partitions.

Each partition's marker is retried until its leader has written it, the partition no longer exists, or the leader
refuses for good. Each try looks up the leader in the metadata. Source: ``TransactionMarkerChannelManager``,
``TransactionMarkerRequestCompletionHandler``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidelog.broker.coordinators.peer_batches import PeerBatches
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import TransactionMarker, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tidelog.proto.transport.network import CallTimeout, Connection, ConnectionLost
from tidelog.replication.partition.due_timer import DueTimer
from tidelog.transactions.marker_sender import MarkersWritten

UNDER_WAY_MAX: Final = 8
"""Maximum calls in flight to one broker."""
WRITE_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0
"""Maximum pause before a partition is retried; pauses double."""

_FINAL: Final = frozenset({ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""A newer coordinator or transaction has taken over."""

Write = Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]


class _Sending:
    """The markers of one transaction. Implements :class:`tidelog.transactions.marker_sender.Sending`."""

    __slots__ = ("cancelled", "marker", "written")

    def __init__(self, marker: TransactionMarker, written: MarkersWritten) -> None:
        self.marker = marker
        self.written = written
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Item:
    """One partition of a transaction's markers."""

    __slots__ = ("at", "sending", "tries")

    def __init__(self, sending: _Sending, at: GroupPartition) -> None:
        self.sending = sending
        self.at = at
        self.tries = 0


class TransactionMarkers:
    """Implements :class:`tidelog.transactions.marker_sender.MarkerSender`. ``write_here`` writes through this node.

    The open transactions of the sending coordinators bound what waits.
    """

    def __init__(
        self,
        node_id: NodeId,
        view: MetadataView,
        connection: Callable[[NodeId], Connection | None],
        write_here: Write,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._connection = connection
        self._write_here = write_here
        self._batches = PeerBatches[_Item](self._send, on_fatal, under_way_max=UNDER_WAY_MAX)
        self._parked: list[tuple[float, int, _Item]] = []
        """Items to retry, a heap ordered by time."""
        self._parked_so_far = 0
        self._leaderless: dict[_Item, None] = {}
        self._timer = DueTimer(self._try_again)
        self._closed = False
        self.retries = 0

    def send(self, marker: TransactionMarker, written: MarkersWritten) -> _Sending:
        """See :class:`tidelog.transactions.marker_sender.MarkerSender`."""
        sending = _Sending(marker, written)
        gone = [at for at in marker.partitions if not self._route(_Item(sending, at))]
        if gone:
            asyncio.get_running_loop().call_soon(partial(self._tell, sending, gone, ErrorCode.NONE))
        return sending

    def metadata_changed(self) -> None:
        """Retry partitions without a leader, because a newer image is in force."""
        if self._leaderless:
            waiting, self._leaderless = self._leaderless, {}
            self._route_again(waiting)

    def close(self) -> None:
        """Send and report nothing more."""
        self._closed = True
        self._batches.close()
        self._parked.clear()
        self._leaderless.clear()
        self._timer.cancel()

    @property
    def waiting(self) -> int:
        """Markers, counted by partition, that wait for a broker's turn or a retry."""
        return self._batches.waiting + len(self._parked)

    @property
    def leaderless(self) -> int:
        """Markers whose partition has no reachable leader."""
        return len(self._leaderless)

    # --- Where to -----------------------------------------------------------------------------------

    def _route(self, item: _Item) -> bool:
        """Send the item to its leader, or keep it until there is one. Returns False if the partition does not exist."""
        if item.sending.cancelled or self._closed:
            return True
        topic = self._view.image.topic(item.at.topic)
        found = None if topic is None else topic.partitions.get(item.at.partition)
        if found is None:
            return False
        if found.leader == NO_NODE:
            self._leaderless[item] = None
        else:
            self._batches.put(found.leader, item)
        return True

    def _route_again(self, items: Sequence[_Item] | dict[_Item, None]) -> None:
        for item in items:
            if not self._route(item):
                self._tell(item.sending, [item.at], ErrorCode.NONE)

    # --- Sending ------------------------------------------------------------------------------------

    async def _send(self, node_id: NodeId, items: list[_Item]) -> None:
        by_sending: dict[_Sending, list[_Item]] = {}
        for item in items:
            if not item.sending.cancelled:
                by_sending.setdefault(item.sending, []).append(item)
        if not by_sending:
            return
        request = WriteTxnMarkersRequest(
            tuple(
                sending.marker
                if len(own) == len(sending.marker.partitions)
                else replace(sending.marker, partitions=tuple(item.at for item in own))
                for sending, own in by_sending.items()
            )
        )
        response = await self._write(node_id, request)
        if response is None or len(response.markers) != len(by_sending):
            for own in by_sending.values():
                self._park(own)
            return
        for (sending, own), marker in zip(by_sending.items(), response.markers, strict=True):
            errors = {(result.topic, result.partition): result.error for result in marker.results}
            told: dict[ErrorCode, list[GroupPartition]] = {}
            again: list[_Item] = []
            for item in own:
                error = errors.get((item.at.topic, item.at.partition), ErrorCode.UNKNOWN_SERVER_ERROR)
                if error is ErrorCode.NONE or error in _FINAL:
                    told.setdefault(error, []).append(item.at)
                else:
                    again.append(item)
            self._park(again)
            for error, partitions in told.items():
                self._tell(sending, partitions, error)

    async def _write(self, node_id: NodeId, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | None:
        """Write through a broker. Returns None if the outcome is unknown, or nobody could be asked."""
        try:
            if node_id == self._node_id:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    return await self._write_here(request)
            connection = self._connection(node_id)
            return None if connection is None else await connection.call(request, timeout_s=WRITE_TIMEOUT_S)
        except (ConnectionLost, CallTimeout, TimeoutError):
            return None

    def _tell(self, sending: _Sending, partitions: Sequence[GroupPartition], error: ErrorCode) -> None:
        if not sending.cancelled and not self._closed:
            sending.written(partitions, error)

    # --- Trying again -------------------------------------------------------------------------------

    def _park(self, items: Sequence[_Item]) -> None:
        loop = asyncio.get_running_loop()
        for item in items:
            if item.sending.cancelled or self._closed:
                continue
            self.retries += 1
            delay_s = min(RETRY_FIRST_S * 2 ** min(item.tries, 10), RETRY_MAX_S)
            item.tries += 1
            self._parked_so_far += 1
            heapq.heappush(self._parked, (loop.time() + delay_s, self._parked_so_far, item))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._parked and not self._closed:
            self._timer.set(self._parked[0][0])

    def _try_again(self) -> None:
        now = asyncio.get_running_loop().time()
        due: list[_Item] = []
        while self._parked and self._parked[0][0] <= now:
            due.append(heapq.heappop(self._parked)[2])
        self._route_again(due)
        self._set_timer()
