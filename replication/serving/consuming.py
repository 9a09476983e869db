"""Consumers' fetches: read below the high watermark, or wait for it to rise, and read each byte once.

A leader may direct a consumer that names its rack to a follower there, and the follower serves it as a leader does, up
to its own high watermark (KIP-392).

With ``read_committed`` the last stable offset replaces the high watermark. It rises only with the high watermark,
because a transaction is decided here once its marker is committed. The answer names the aborted transactions among its
records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import TopicIdPartition
from tidelog.proto.transport.frames import ANY_REPLICA, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from tidelog.replication.partition.answers import fetched, refused_fetch
from tidelog.replication.partition.leader import RackOf
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.replication.serving.consumer_fetch import ConsumerFetch, ReadFailed
from tidelog.replication.serving.standing import Standing, StandingFetch
from tidelog.storage.disk.log_errors import LogDirFailed


class Consuming:
    """The leader's side of consumer fetches for all partitions of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicIdPartition, Replica],
        settings: ReplicationSettings,
        failed: ReadFailed,
        rack_of: RackOf | None = None,
    ) -> None:
        """With ``rack_of``, leaders send consumers to followers in their racks."""
        self.rack_of = rack_of
        self.serves_nearby = True
        """Whether followers here serve consumers in their rack; not while this broker may be cut off."""
        self.replicas = replicas
        self.settings = settings
        self.failed = failed
        self.waiting = 0
        self.held_bytes = 0
        """Bytes that waiting fetches have read so far."""
        self.bytes = 0

    def fetch(self, request: FetchRequest, *, in_files: bool = False) -> asyncio.Future[FetchResponse]:
        """Answer immediately if there is enough data, an error, or no allowed wait; otherwise once there is enough.

        "Enough" is ``bytes_min``. The answer is limited to the smaller of the request's ``bytes_max`` and
        ``fetch_max_bytes``, except that the first batch is always whole; a full answer is always enough. ``in_files``:
        the records stay in their files; the answer's receiver releases them. Cancelling the future releases its own.
        """
        if request.replica_id == ANY_REPLICA:
            answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
            answered.set_result(self._read_any(request))
            return answered
        return ConsumerFetch(self, request, in_files).begin()

    def fetch_standing(
        self, standing: Standing, request: FetchRequest, *, in_files: bool = False
    ) -> asyncio.Future[FetchResponse]:
        """Like :meth:`fetch`, for the partitions of a session that may have news; the request names none. A waiting
        fetch of the same session is answered first."""
        return StandingFetch(self, standing, request, in_files).begin()

    def _read_any(self, request: FetchRequest) -> FetchResponse:
        """Read from replicas here, whatever their role, up to their high watermark, and always check CRCs: for other
        replicas' mending."""
        left, found = min(request.bytes_max, self.settings.fetch_max_bytes), []
        for item in request.partitions:
            found.append(self._read_one(item, left))
            left = max(left - sum(map(len, found[-1].records)), 0)
        return FetchResponse(ErrorCode.NONE, found)

    def _read_one(self, item: FetchPartition, bytes_max: int) -> FetchedPartition:
        replica = self.replicas.get(TopicIdPartition(item.topic_id, item.partition))
        if replica is None:
            return FetchedPartition(item.topic_id, item.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        partition = replica.partition
        if partition.offline:
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        room, mark = min(bytes_max, item.bytes_max), partition.high_watermark
        try:
            read = partition.log.read(item.fetch_offset, room, offset_end=mark, at_least_one=bytes_max > 0)
        except LogDirFailed as failure:
            self.failed(replica, failure)
            return refused_fetch(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        if not isinstance(read, Refusal):
            read = partition.log.checked(read, item.fetch_offset)
        if isinstance(read, Refusal):
            return refused_fetch(replica, read.code)
        return fetched(replica, (read.records,) if len(read.records) else ())

    def may_wait(self, held: int) -> bool:
        settings = self.settings
        return self.waiting < settings.fetch_waiters_max and self.held_bytes + held <= settings.fetch_held_bytes_max
