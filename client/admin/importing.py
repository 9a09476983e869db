"""Imports batches into a partition at their offsets, with retries; for restores and links."""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import RequestTimedOutError, TidelogError, exception_for
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, Offset, TopicId, TopicPartition
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse

_CALL_MS: Final = 30_000
_METADATA_MS: Final = 60_000
_AGAIN_S: Final = 0.2


async def import_records(
    cluster: Cluster,
    at: TopicPartition,
    topic_id: TopicId,
    end: int,
    records: Buffer,
    *,
    patience_s: float,
    link: str = "",
) -> int:
    """Import whole batches after ``end``, and return where the log ends once the in-sync replicas have them.

    Retries for ``patience_s`` while leaders move or are missing, then raises the reason; raises other errors
    immediately. Repeating it is harmless: see :class:`ImportRecordsRequest`.
    """
    answer = await _ask(cluster, at, topic_id, end, records, patience_s, link)
    if answer.error is not ErrorCode.NONE:
        raise exception_for(answer.error, f"{at}: {answer.error_message or answer.error.name}")
    return answer.log_end_offset


async def refused_end(
    cluster: Cluster, at: TopicPartition, topic_id: TopicId, *, patience_s: float, link: str
) -> int | None:
    """Return where the leader's log ends if it refuses records of a link ("": of others), or ``None`` if it would
    accept some. The in-sync replicas may not have all of it yet. Raises what :func:`import_records` does."""
    answer = await _ask(cluster, at, topic_id, 0, b"", patience_s, link)
    return answer.log_end_offset if answer.error is ErrorCode.INVALID_REQUEST else None


async def _ask(
    cluster: Cluster, at: TopicPartition, topic_id: TopicId, end: int, records: Buffer, patience_s: float, link: str
) -> ImportRecordsResponse:
    """Return a leader's answer: records accepted, or INVALID_REQUEST."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        view = await cluster.topic(at.topic, _METADATA_MS)
        node = cluster.cache.leader_of(*at)
        reason: TidelogError = exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{at}: has no leader")
        if node != NO_NODE:
            epoch = view.partitions[at.partition].leader_epoch
            request = ImportRecordsRequest(topic_id, at.partition, epoch, Offset(end), records, _CALL_MS, link)
            try:
                answer = await cluster.call(request, timeout_ms=2 * _CALL_MS, node=node)
                if answer.error in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):
                    return answer
                reason = exception_for(answer.error, f"{at}: {answer.error_message or answer.error.name}")
            except TidelogError as error:
                reason = error
        if not reason.retriable and not isinstance(reason, RequestTimedOutError):
            raise reason
        if loop.time() >= deadline:
            raise reason
        cluster.request_refresh()
        await asyncio.sleep(_AGAIN_S)
