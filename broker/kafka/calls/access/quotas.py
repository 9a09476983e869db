"""DescribeClientQuotas and AlterClientQuotas, translated (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.quota_api import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
)

_MATCHES: Final = (EXACT, DEFAULT, SPECIFIED)
"""By Kafka's number."""


async def describe_client_quotas(request: Any, _: int, context: KafkaContext) -> Answer:
    components = tuple(
        QuotaFilter(
            each.entity_type,
            _MATCHES[each.match_type] if 0 <= each.match_type < len(_MATCHES) else str(each.match_type),
            each.match,
        )
        for each in request.components
    )
    wanted = DescribeClientQuotasRequest(components, request.strict)
    answer: DescribeClientQuotasResponse = await context.call(wanted)
    if answer.error is not ErrorCode.NONE:
        return {"error_code": answer.error, "error_message": answer.error_message, "entries": None}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "entries": [
            {
                "entity": _shown(found.entity),
                "values": [{"key": each.key, "value": each.value} for each in found.values],
            }
            for found in answer.entries
        ],
    }


async def alter_client_quotas(request: Any, _: int, context: KafkaContext) -> Answer:
    entries = tuple(
        QuotaAlteration(
            tuple(QuotaEntity(part.entity_type, part.entity_name) for part in each.entity),
            tuple(QuotaChange(op.key, None if op.remove else op.value) for op in each.ops),
        )
        for each in request.entries
    )
    answer: AlterClientQuotasResponse = await context.call(AlterClientQuotasRequest(entries, request.validate_only))
    return {
        "entries": [
            {
                "error_code": found.error,
                "error_message": found.error_message or None,
                "entity": _shown(found.entity),
            }
            for found in answer.entries
        ]
    }


def _shown(entity: Iterable[QuotaEntity]) -> list[dict[str, Any]]:
    return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entity]


APIS: Final = (Api(48, 0, 1, describe_client_quotas), Api(49, 0, 1, alter_client_quotas))
