"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken, translated (KIP-48,
KIP-373)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

REQUESTER_FROM: Final = 3
"""The version of CreateDelegationToken and DescribeDelegationToken from which answers name a token's requester."""


async def create(request: Any, version: int, context: KafkaContext) -> Answer:
    caller = str(context.call_context.session.principal)
    owner = None
    if version >= REQUESTER_FROM and request.owner_principal_name:
        owner = _principal(request.owner_principal_type or "", request.owner_principal_name)
    wanted = asked(CreateDelegationTokenRequest, request, owner=owner, renewers=_principals(request.renewers))
    answer: CreateDelegationTokenResponse = await context.call(wanted)
    made = answer.token or DescribedDelegationToken("", owner or caller, caller, (), -1, -1, -1)
    return {"error_code": answer.error, **_fields(made, version)}


async def renew(request: Any, _: int, context: KafkaContext) -> Answer:
    return answered(await context.call(asked(RenewDelegationTokenRequest, request)))


async def expire(request: Any, _: int, context: KafkaContext) -> Answer:
    return answered(await context.call(asked(ExpireDelegationTokenRequest, request)))


async def describe(request: Any, version: int, context: KafkaContext) -> Answer:
    owners = request.owners
    wanted = DescribeDelegationTokenRequest(_principals(owners or ()), owners is None)
    answer: DescribeDelegationTokenResponse = await context.call(wanted)
    return {
        "error_code": answer.error,
        "tokens": [
            {**_fields(found, version), "renewers": [_parts(each) for each in found.renewers]}
            for found in answer.tokens
        ],
    }


def _fields(token: DescribedDelegationToken, version: int) -> dict[str, Any]:
    """Return the fields of a token. Before KIP-373, it only has its owner."""
    values = _parts(token.owner) | answered(token, expiration_timestamp_ms="expiry_timestamp")
    if version >= REQUESTER_FROM:
        kind, _, name = token.requester.partition(":")
        values |= {"token_requester_principal_type": kind, "token_requester_principal_name": name}
    return values


def _parts(principal: str) -> dict[str, Any]:
    kind, _, name = principal.partition(":")
    return {"principal_type": kind, "principal_name": name}


def _principals(given: Iterable[Any]) -> tuple[str, ...]:
    return tuple(_principal(each.principal_type, each.principal_name) for each in given)


def _principal(kind: str, name: str) -> str:
    return f"{kind}:{name}"


APIS: Final = (Api(38, 1, 3, create), Api(39, 1, 2, renew), Api(40, 1, 2, expire), Api(41, 1, 3, describe))
