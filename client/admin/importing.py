"""Imports batches into a partition at their offsets, with retries; for restores and links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import RequestTimedOutError, TidelogError, exception_for
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, LeaderEpoch, Offset, TopicId, TopicPartition
from tidelog.proto.calls.backup_api import ImportRecordsRequest, ImportRecordsResponse

_CALL_MS: Final = 30_000
_ASK_MS: Final = 2_000
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
    answer = await _ask(
        cluster,
        at,
        lambda epoch: ImportRecordsRequest(topic_id, at.partition, epoch, Offset(end), records, _CALL_MS, link),
        patience_s,
    )
    if answer.error is not ErrorCode.NONE:
        raise exception_for(answer.error, f"{at}: {answer.error_message or answer.error.name}")
    return answer.log_end_offset


async def refused_end(
    cluster: Cluster, at: TopicPartition, topic_id: TopicId, *, patience_s: float, link: str
) -> int | None:
    """Return where the leader's log ends if it refuses records of a link ("": of others), or ``None`` if it would
    accept some. The in-sync replicas may not have all of it yet. Raises what :func:`import_records` does."""
    answer = await _ask(
        cluster,
        at,
        lambda epoch: ImportRecordsRequest(topic_id, at.partition, epoch, Offset(0), b"", _CALL_MS, link),
        patience_s,
    )
    return answer.log_end_offset if answer.error is ErrorCode.INVALID_REQUEST else None


async def import_file(
    cluster: Cluster,
    at: TopicPartition,
    topic_id: TopicId,
    place: str,
    manifest_sha256: str,
    *,
    patience_s: float,
    read: Callable[[int], Awaitable[None]],
) -> ImportRecordsResponse:
    """Have the leader import a partition's file of a backup that it reads itself. ``read`` is called with the number of
    bytes that it has read since the last call. Returns its last answer: it is done, it does not read the file
    (POLICY_VIOLATION, or an earlier release), or the file is damaged (CORRUPT_MESSAGE).

    Raises the reason if the leader gets no further for ``patience_s``. Repeating it is harmless.
    """
    loop = asyncio.get_running_loop()
    before, came_on_at = 0, loop.time()
    while True:
        answer = await _ask(
            cluster,
            at,
            lambda epoch: ImportRecordsRequest(
                topic_id, at.partition, epoch, Offset(0), b"", _ASK_MS, place=place, manifest_sha256=manifest_sha256
            ),
            patience_s,
            (ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.CORRUPT_MESSAGE),
        )
        now = loop.time()
        if answer.reads and answer.read_bytes != before:
            await read(max(0, answer.read_bytes - before))
            before, came_on_at = answer.read_bytes, now
        if answer.done or not answer.reads:
            return answer
        if now - came_on_at > patience_s:
            text = f"{at}: its leader has read nothing for {patience_s:g} s; too few replicas may be in sync"
            raise exception_for(ErrorCode.REQUEST_TIMED_OUT, text)


async def _ask(
    cluster: Cluster,
    at: TopicPartition,
    make: Callable[[LeaderEpoch], ImportRecordsRequest],
    patience_s: float,
    final: Container[ErrorCode] = (ErrorCode.NONE, ErrorCode.INVALID_REQUEST),
) -> ImportRecordsResponse:
    """Return a leader's answer with one of the ``final`` codes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        view = await cluster.topic(at.topic, _METADATA_MS)
        node = cluster.cache.leader_of(*at)
        reason: TidelogError = exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{at}: has no leader")
        if node != NO_NODE:
            epoch = view.partitions[at.partition].leader_epoch
            try:
                answer = await cluster.call(make(epoch), timeout_ms=2 * _CALL_MS, node=node)
                if answer.error in final:
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
