"""The client side of a login over gRPC: before the first call, and again in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

from tidelog.model.errors import ErrorCode
from tidelog.model.settings.listener_security import UNPROTECTED
from tidelog.model.settings.listeners import is_this_machine
from tidelog.proto.calls.user_api import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.proto.transport.network import Address, LoginNotMade
from tidelog.security.sasl import ClientMechanism, LoginRefused

MakeLogin: TypeAlias = Callable[[], ClientMechanism]
"""Begins a login; each is for one use."""
STEPS_MAX: Final = 5
AGAIN_AFTER: Final = 0.85
"""Share of a login's lifetime after which it is renewed, the earliest point in Kafka's Java client."""


class Ask(Protocol):
    def __call__(self, request: SaslAuthenticateRequest, timeout_s: float, shown: Any, /) -> Awaitable[Any]: ...


class ClientLogin:
    """Keeps one connection logged in. ``encrypted``: whether the connection is encrypted."""

    def __init__(self, address: Address, make: MakeLogin, ask: Ask, *, encrypted: bool) -> None:
        self._address = address
        self._make = make
        self._ask = ask
        self._encrypted = encrypted
        self._token = ""
        self._good_until_s: float | None = None
        self._one_at_a_time = asyncio.Lock()

    async def token(self, timeout_s: float) -> str:
        """Return the next call's credentials. Raises ``LoginNotMade``, ``ConnectionLost``, ``CallTimeout``."""
        if not self._good:
            async with self._one_at_a_time:
                if not self._good:
                    await self._log_in(timeout_s)
        return self._token

    def forget(self) -> None:
        """Forget the token, which the peer no longer knows."""
        self._token = ""

    @property
    def _good(self) -> bool:
        until_s = self._good_until_s
        return bool(self._token) and (until_s is None or asyncio.get_running_loop().time() < until_s)

    async def _log_in(self, timeout_s: float) -> None:
        mechanism = self._make()
        if mechanism.name in UNPROTECTED and not self._encrypted and not is_this_machine(self._address.host):
            raise self._failed(f"{mechanism.name} would send a secret unencrypted: use SASL_SSL")
        try:
            first = await asyncio.to_thread(mechanism.first)
        except LoginRefused as refused:
            raise self._failed(str(refused)) from None
        answer = await self._step(mechanism, b"", first, timeout_s)
        for _ in range(STEPS_MAX):
            try:
                token = await asyncio.to_thread(mechanism.step, answer.auth_bytes)
            except LoginRefused as refused:
                raise self._failed(str(refused)) from None
            if answer.session_token:
                break
            answer = await self._step(mechanism, answer.exchange, token or b"", timeout_s)
        if not answer.session_token or not mechanism.done:
            raise self._failed("expected the server to end the login in good order: it may be an impostor")
        self._token = answer.session_token
        lifetime_s = answer.session_lifetime_ms / 1000
        now_s = asyncio.get_running_loop().time()
        self._good_until_s = now_s + AGAIN_AFTER * lifetime_s if lifetime_s else None

    async def _step(
        self, mechanism: ClientMechanism, exchange: bytes, token: bytes, timeout_s: float
    ) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(mechanism.name, exchange, token)
        answer: SaslAuthenticateResponse = await self._ask(request, timeout_s, ())
        if answer.error is not ErrorCode.NONE:
            raise self._failed(answer.error_message)
        return answer

    def _failed(self, text: str) -> LoginNotMade:
        return LoginNotMade(f"{self._address}: {text}")
