"""Calls about delegation tokens: described from this node's metadata, changed by the active controller.

Source: Kafka's ``KafkaApis.handleCreateTokenRequest`` and its neighbours (KIP-48, KIP-373).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.broker.handlers.forwarding import VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.handlers.users import confidential
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.refusals import refuse
from tidelog.metadata_quorum.controller.token_changes import DISABLED, described
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.proto.calls.request import Change, Response
from tidelog.proto.transport.network import CallContext
from tidelog.security.delegation_tokens import is_of
from tidelog.security.principal import ANONYMOUS

NOT_ALLOWED: Final = (
    "expected a client authenticated by something other than a delegation token, over TLS or on the node's own "
    "machine: anyone who intercepts the answer could log in"
)
AT_A_TIME: Final = 500
"""How many tokens' secrets to compute before letting others run: some 2 ms."""
_NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


R = TypeVar("R", bound=Response)


class DelegationTokens:
    """See the module."""

    def __init__(self, config: NodeConfig, channel: ControllerChannel, view: MetadataView) -> None:
        self._key = config.delegation_token_secret_key
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {
            CreateDelegationTokenRequest: self.create,
            RenewDelegationTokenRequest: self.renew,
            ExpireDelegationTokenRequest: self.expire,
            DescribeDelegationTokenRequest: self.describe,
        }

    async def create(
        self, request: CreateDelegationTokenRequest, context: CallContext
    ) -> CreateDelegationTokenResponse:
        # Not repeated after an unknown outcome: that could create two tokens.
        answer = await self._changed(request, context, retry_unknown=False)
        if (made := answer.token) is not None:
            await self._visible(lambda image: made.token_id in image.delegation_tokens)
        return answer

    async def renew(self, request: RenewDelegationTokenRequest, context: CallContext) -> RenewDelegationTokenResponse:
        answer = await self._changed(request, context)
        if answer.error is ErrorCode.NONE:
            until_ms = answer.expiry_timestamp_ms
            await self._visible(lambda image: _expiry_ms(image, answer.token_id) == until_ms)
        return answer

    async def expire(
        self, request: ExpireDelegationTokenRequest, context: CallContext
    ) -> ExpireDelegationTokenResponse:
        # Not repeated after an unknown outcome: a token that was removed would then not be found.
        answer = await self._changed(request, context, retry_unknown=False)
        if answer.error is ErrorCode.NONE:
            until_ms = None if request.expiry_time_period_ms < 0 else answer.expiry_timestamp_ms
            await self._visible(lambda image: _expiry_ms(image, answer.token_id) == until_ms)
        return answer

    async def describe(
        self, request: DescribeDelegationTokenRequest, context: CallContext
    ) -> DescribeDelegationTokenResponse:
        """Describe all selected tokens; the permission has limited them to those that the caller may see."""
        if not _may_ask(context):
            return DescribeDelegationTokenResponse(_NOT_ALLOWED, error_message=NOT_ALLOWED)
        if not self._key:
            return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, error_message=DISABLED)
        known = self._view.image.delegation_tokens
        named = set(request.token_ids).intersection(known) if request.by_id else known
        meant = [
            known[token_id]
            for token_id in sorted(named)
            if request.all_owners or any(is_of(known[token_id], owner) for owner in request.owners)
        ]
        found: list[DescribedDelegationToken] = []
        for begin in range(0, len(meant), AT_A_TIME):
            found += (described(record, self._key) for record in meant[begin : begin + AT_A_TIME])
            await asyncio.sleep(0)
        return DescribeDelegationTokenResponse(ErrorCode.NONE, tuple(found))

    async def _changed(self, request: Change[R], context: CallContext, *, retry_unknown: bool = True) -> R:
        if not _may_ask(context):
            return refuse(request, _NOT_ALLOWED, NOT_ALLOWED)
        caller = str(context.session.principal)
        asked: Change[R] = replace(request, requester=caller)  # type: ignore[call-arg]  # each change of a token has it
        answer, _ = await forwarded(self._channel, asked, context, retry_unknown=retry_unknown)
        return answer

    async def _visible(self, shown: Callable[[MetadataImage], bool]) -> None:
        await self._view.wait_until(shown, timeout_s=VISIBLE_TIMEOUT_S)


def _may_ask(context: CallContext) -> bool:
    """Decide as ``KafkaApis.allowTokenRequests``. Also, nobody on the network path may read an HMAC, as with salted
    passwords."""
    session = context.session
    return not session.by_token and session.principal != ANONYMOUS and confidential(context)


def _expiry_ms(image: MetadataImage, token_id: str) -> int | None:
    found = image.delegation_tokens.get(token_id)
    return None if found is None else found.expiration_timestamp_ms
