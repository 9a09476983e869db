"""Calls for restores; calls from backups to coordinators are in :mod:`tidelog.broker.handlers.transactions`."""

from __future__ import annotations

from tidelog.broker.handlers.forwarding import VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.logs.backup_reading import BackupReading
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.backup_api import (
    AdvanceProducerIdsRequest,
    AdvanceProducerIdsResponse,
    ImportRecordsRequest,
    ImportRecordsResponse,
)
from tidelog.proto.transport.network import CallContext
from tidelog.replication.manager import ReplicaManager


class Backups:
    """See the module."""

    def __init__(
        self, replicas: ReplicaManager, reading: BackupReading, channel: ControllerChannel, view: MetadataView
    ) -> None:
        self._replicas = replicas
        self._reading = reading
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {ImportRecordsRequest: self.import_records, AdvanceProducerIdsRequest: self.advance_producer_ids}

    async def import_records(self, request: ImportRecordsRequest, _: CallContext) -> ImportRecordsResponse:
        if request.place:
            return await self._reading.ask(request)
        return await self._replicas.importing.take(request)

    async def advance_producer_ids(
        self, request: AdvanceProducerIdsRequest, context: CallContext
    ) -> AdvanceProducerIdsResponse:
        """Return an error unless this broker's image has the change: the caller relies on its metadata being that
        new."""
        answer, _ = await forwarded(self._channel, request, context)
        if answer.error is not ErrorCode.NONE:
            return answer
        shown = await self._view.wait_until(
            lambda image: image.next_producer_id > answer.first_producer_id, timeout_s=VISIBLE_TIMEOUT_S
        )
        if not shown:
            text = "this broker's metadata does not have the requested change yet: ask another broker"
            return AdvanceProducerIdsResponse(ErrorCode.REQUEST_TIMED_OUT, error_message=text)
        return answer
