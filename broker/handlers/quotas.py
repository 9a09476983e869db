"""Calls about client quotas: described from this broker's image, altered by the active controller.

Source: Kafka's ``ClientQuotasImage`` and ``KafkaApis.handleDescribeClientQuotas``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.handlers.forwarding import SETTING_VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.quota_changes import canonical
from tidelog.model.client_quotas import CLIENT_ID, ENTITY_TYPES, IP, USER
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.quota_api import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaEntity,
    QuotaFilter,
    QuotaValue,
)
from tidelog.proto.transport.network import CallContext


class Quotas:
    """See the module."""

    def __init__(self, channel: ControllerChannel, view: MetadataView) -> None:
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {DescribeClientQuotasRequest: self.describe, AlterClientQuotasRequest: self.alter}

    async def describe(self, request: DescribeClientQuotasRequest, _: CallContext) -> DescribeClientQuotasResponse:
        fault = _filter_fault(request.components)
        if fault is not None:
            return DescribeClientQuotasResponse(fault.code, error_message=fault.message)
        found = [
            (entity, values)
            for entity, values in self._view.image.quotas.items()
            if _matches(entity, request.components, strict=request.strict)
        ]
        found.sort(key=lambda item: [(part.entity_type, part.entity_name or "") for part in item[0]])
        return DescribeClientQuotasResponse(
            ErrorCode.NONE,
            tuple(
                DescribedQuotas(entity, tuple(QuotaValue(key, values[key]) for key in sorted(values)))
                for entity, values in found
            ),
        )

    async def alter(self, request: AlterClientQuotasRequest, context: CallContext) -> AlterClientQuotasResponse:
        answer, _ = await forwarded(self._channel, request, context)
        if not request.validate_only:
            wanted = [
                (canonical(entry.entity), change.key, change.value)
                for entry, result in zip(request.entries, answer.entries, strict=False)
                if result.error is ErrorCode.NONE
                for change in entry.changes
            ]
            await self._view.wait_until(
                lambda image: all(image.quota(entity).get(key) == value for entity, key, value in wanted),
                timeout_s=SETTING_VISIBLE_TIMEOUT_S,
            )
        return answer


def _filter_fault(components: Sequence[QuotaFilter]) -> Refusal | None:
    types = [part.entity_type for part in components]
    for part in components:
        if part.entity_type not in ENTITY_TYPES:
            # Source: ClientQuotasImage.describe, which tells an empty type from an unknown one.
            code = ErrorCode.UNSUPPORTED_VERSION if part.entity_type else ErrorCode.INVALID_REQUEST
            return Refusal(code, f"expected a filter on {', '.join(ENTITY_TYPES)}, found {part.entity_type[:80]!r}")
        if types.count(part.entity_type) > 1:
            text = f"expected each type once in a filter, found {part.entity_type} twice"
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        if part.match_type not in (EXACT, DEFAULT, SPECIFIED):
            text = f"expected a match that is {EXACT}, {DEFAULT} or {SPECIFIED}, found {part.match_type[:80]!r}"
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        if (part.match is None) is (part.match_type == EXACT):
            found = "none" if part.match is None else repr(part.match[:80])
            wanted = "a name to match exactly" if part.match_type == EXACT else f"no name with {part.match_type}"
            return Refusal(ErrorCode.INVALID_REQUEST, f"{part.entity_type}: expected {wanted}, found {found}")
    if IP in types and (USER in types or CLIENT_ID in types):
        return Refusal(
            ErrorCode.INVALID_REQUEST, "expected an ip by itself in a filter, found it beside a user or client-id"
        )
    return None


def _matches(entity: Sequence[QuotaEntity], components: Sequence[QuotaFilter], *, strict: bool) -> bool:
    if strict and len(entity) != len(components):
        return False
    named = {part.entity_type: part.entity_name for part in entity}
    for wanted in components:
        if wanted.entity_type not in named:
            return False
        name = wanted.match
        if name is not None and wanted.entity_type == IP:
            name = plain_address(name)
        if wanted.match_type != SPECIFIED and named[wanted.entity_type] != name:
            return False
    return True
