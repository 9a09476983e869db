"""Applies the permissions of :mod:`tidelog.broker.access.permissions` to a broker's calls and data streams."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from tidelog.broker.access.access import Access, AccessControl
from tidelog.broker.access.changes import Image, api_of, audited
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.access.resources import NO_TRANSACTION, READ, WRITE, topic_by_id, transaction_name
from tidelog.broker.access.rules import TEXTS, Rule, woven
from tidelog.broker.access.topic_permissions import metadata_of_what_is_there
from tidelog.broker.access.unaudited import only_audited
from tidelog.broker.futures import then
from tidelog.broker.services import Calls
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import MetadataRequest
from tidelog.proto.records.batches import HEADER_SIZE, LENGTH_OVERHEAD
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
)
from tidelog.proto.transport.network import CallContext, CallHandler
from tidelog.replication.partition.waiters import Produced
from tidelog.replication.serving.producing import BATCHES_MAX

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_ATTRIBUTES_LOW_AT: Final = 22
_TRANSACTIONAL: Final = 0x10


def guarded(calls: Calls, control: AccessControl, image: Image, *, creates_topics: bool) -> Calls:
    """Wrap the calls so that each is limited to its sender's rights and recorded in the audit log. Every call has a row
    in the table. ``creates_topics``: whether first use creates a topic."""
    rules = {request_type: PERMISSIONS[request_type] for request_type in calls}
    if not creates_topics:
        rules[MetadataRequest] = metadata_of_what_is_there
    calls = only_audited(audited(calls, control, image), rules, control, image)
    if control.authorizer is None and control.audit is None:
        return calls
    return {
        request_type: _guarded(api_of(request_type), rules[request_type], handler, control, image)
        for request_type, handler in calls.items()
    }


def _guarded(name: str, rule: Rule, handler: CallHandler, control: AccessControl, image: Image) -> CallHandler:
    async def serve(request: object, context: CallContext) -> Any:
        access = control.of(context, name)
        if access is None:
            return await handler(request, context)
        return await rule(request, access, image(), lambda passed: handler(passed, context))

    return serve


class Replicas(Protocol):
    """The methods that data streams need."""

    def produce(self, request: ProduceRequest) -> Produced: ...
    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]: ...


class GuardedReplicas:
    """The replicas as one caller may use them, with topics by id."""

    def __init__(self, replicas: Replicas, access: Access, image: Image) -> None:
        self._replicas = replicas
        self._produces = access.of_request("Produce")
        self._fetches = access.of_request("Fetch")
        self._image = image

    def produce(self, request: ProduceRequest) -> Produced:
        access = self._produces
        image, identity = self._image(), request.transactional_id
        error = transaction_fault(identity, access)
        faults = [error or topic_by_id(image, part.topic_id, access, WRITE) for part in request.partitions]
        passed = (part.records for part, fault in zip(request.partitions, faults, strict=True) if not fault)
        if is_of_hidden_transaction(identity, passed):
            faults = [fault or NO_TRANSACTION for fault in faults]
        if not any(faults):
            return self._replicas.produce(request)
        pairs = list(zip(request.partitions, faults, strict=True))
        refused = [
            ProducedPartition(part.topic_id, part.partition, fault, error_message=TEXTS[fault]) if fault else None
            for part, fault in pairs
        ]
        done = self._replicas.produce(request._replace(partitions=[part for part, fault in pairs if not fault]))
        if isinstance(done, list):
            return list(woven(refused, done))
        return then(done, lambda finished: list(woven(refused, finished.result())))

    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        """Fetch. If something is refused, the fetch does not wait for more data."""
        image, access = self._image(), self._fetches
        faults = [topic_by_id(image, part.topic_id, access, READ) for part in request.partitions]
        if not any(faults):
            return self._replicas.fetch(request)
        pairs = list(zip(request.partitions, faults, strict=True))
        refused = [FetchedPartition(part.topic_id, part.partition, fault) if fault else None for part, fault in pairs]
        kept = [part for part, fault in pairs if not fault]
        fetched = self._replicas.fetch(replace(request, partitions=kept, wait_ms_max=0))
        return then(fetched, lambda done: _with_refused(done.result(), refused))


def transaction_fault(transactional_id: str | None, access: Access) -> ErrorCode:
    """Return an error if nothing may be written under a transactional id."""
    if transactional_id is None or access.transaction(WRITE, transaction_name(transactional_id)):
        return ErrorCode.NONE
    return NO_TRANSACTION


def is_of_hidden_transaction(transactional_id: str | None, records: Iterable[Buffer]) -> bool:
    """Return whether records claim to belong to a transaction although none is named (CVE-2018-17196). Call it only for
    records that their sender may otherwise write: it costs time per batch."""
    return transactional_id is None and _any_transactional(records)


def _any_transactional(records: Iterable[Buffer]) -> bool:
    """Return whether one of the batches is transactional, or there are too many to tell. Unreadable ones are refused
    later."""
    left = BATCHES_MAX
    for each in records:
        view, at = memoryview(each), 0
        while at + _ATTRIBUTES_LOW_AT < len(view):
            left -= 1
            if left < 0 or view[at + _ATTRIBUTES_LOW_AT] & _TRANSACTIONAL:
                return True
            (length,) = _LENGTH.unpack_from(view, at + _LENGTH_AT)
            if length < HEADER_SIZE - LENGTH_OVERHEAD:
                break
            at += LENGTH_OVERHEAD + length
    return False


def _with_refused(answer: FetchResponse, refused: Sequence[FetchedPartition | None]) -> FetchResponse:
    if answer.error is not ErrorCode.NONE:
        return answer
    return replace(answer, partitions=list(woven(refused, answer.partitions)))
