"""DescribeClientQuotas and AlterClientQuotas, translated (KIP-546)."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked, asked_each
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.quota_api import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    AlterClientQuotasRequest,
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
        asked(
            QuotaFilter,
            each,
            match_type=_MATCHES[each.match_type] if 0 <= each.match_type < len(_MATCHES) else str(each.match_type),
        )
        for each in request.components
    )
    wanted = DescribeClientQuotasRequest(components, request.strict)
    answer: DescribeClientQuotasResponse = await context.call(wanted)
    shown = answered(answer)
    return shown if answer.error is ErrorCode.NONE else shown | {"entries": None}


async def alter_client_quotas(request: Any, _: int, context: KafkaContext) -> Answer:
    entries = tuple(
        QuotaAlteration(
            asked_each(QuotaEntity, each.entity),
            tuple(QuotaChange(op.key, None if op.remove else op.value) for op in each.ops),
        )
        for each in request.entries
    )
    return answered(await context.call(AlterClientQuotasRequest(entries, request.validate_only)))


APIS: Final = (Api(48, 0, 1, describe_client_quotas), Api(49, 0, 1, alter_client_quotas))
