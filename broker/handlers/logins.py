"""Logins for transports whose calls are not tied to a connection: a login returns a token, which each call and stream
presents.

The token is valid at one listener of one node, for callers from one address, until the login ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.logins import FindLogins, LoggedIn, Login, LoginFailed
from tidelog.broker.notices import Notices
from tidelog.broker.services import Calls
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.user_api import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.proto.transport.network import CallContext
from tidelog.security.sasl import Cause, failure
from tidelog.security.session import FindSession, Session

EXCHANGES_MAX: Final = 1_000
"""Maximum logins in progress; beyond it, the oldest is forgotten."""
SESSIONS_MAX: Final = 10_000
"""Maximum active logins; beyond it, the least recently used one is forgotten, and its client must log in again."""
EXCHANGE_S: Final = 10.0
TOKEN_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class _Exchange:
    login: Login
    host: str
    until_s: float


class TokenLogins:
    """See the module."""

    def __init__(self, find: FindLogins, control: AccessControl) -> None:
        self._find = find
        self._control = control
        self._notices = Notices()
        self._exchanges: OrderedDict[bytes, _Exchange] = OrderedDict()
        self._sessions: OrderedDict[str, tuple[LoggedIn, str, str]] = OrderedDict()
        """By token, with listener and host."""

    def calls(self) -> Calls:
        return {SaslAuthenticateRequest: self.authenticate}

    def sessions(self, listener: str) -> FindSession | None:
        """Return how a listener finds its callers' sessions; ``None`` if it has no logins."""
        if self._find(listener) is None:
            return None
        return lambda token, host: self._session(listener, token, host)

    async def authenticate(self, request: SaslAuthenticateRequest, context: CallContext) -> SaslAuthenticateResponse:
        logins = self._find(context.listener)
        if logins is None:
            text = f"listener {context.listener} has no logins (listener.security.protocol.map)"
            return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        began = self._exchanges.pop(request.exchange, None) if request.exchange else None
        login = logins.begin(request.mechanism) if not request.exchange else None if began is None else began.login
        if login is None and not request.exchange:
            text = f"expected one of {', '.join(logins.mechanisms)} (sasl_mechanism), found {request.mechanism[:40]!r}"
            refused = await logins.failed(text, cause=Cause.MECHANISM)
            self._note(context, refused, refused.reason, request.mechanism)
            return SaslAuthenticateResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, error_message=text)
        now_s = asyncio.get_running_loop().time()
        if login is None or (began is not None and (began.host != context.host or now_s > began.until_s)):
            return self._failed(context, await logins.failed("expected a login in progress, found none"), request)
        if len(request.auth_bytes) > logins.receive_bytes_max:
            most = logins.receive_bytes_max
            return self._failed(context, await logins.failed(f"expected a message of at most {most}"), request)
        found = await login.step(request.auth_bytes)
        if isinstance(found, LoginFailed):
            return self._failed(context, found, request)
        if isinstance(found, LoggedIn):
            token = secrets.token_urlsafe(TOKEN_BYTES)
            self._sessions[token] = (found, context.listener, context.host)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
            return SaslAuthenticateResponse(
                ErrorCode.NONE, found.token, session_token=token, session_lifetime_ms=found.lifetime_ms
            )
        exchange = secrets.token_bytes(TOKEN_BYTES)
        self._exchanges[exchange] = began or _Exchange(login, context.host, now_s + EXCHANGE_S)
        if len(self._exchanges) > EXCHANGES_MAX:
            self._exchanges.popitem(last=False)
        return SaslAuthenticateResponse(ErrorCode.NONE, found.token, exchange)

    def forget(self, principal: str, host: str) -> None:
        """Forget the logins of a principal ("": any) from a host ("": any): their next requests need another."""
        for token, (found, _, at) in list(self._sessions.items()):
            if principal in ("", str(found.session.principal)) and host in ("", at):
                del self._sessions[token]

    def _session(self, listener: str, token: str, host: str) -> Session | None:
        known = self._sessions.get(token)
        if known is None:
            return None
        found, at, of = known
        if found.over(asyncio.get_running_loop().time()):
            del self._sessions[token]
            return None
        if (at, of) != (listener, host):
            return None
        self._sessions.move_to_end(token)
        return found.session

    def _failed(
        self, context: CallContext, failed: LoginFailed, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        self._note(context, failed, f"{failed.reason} ({request.mechanism[:40]!r})", request.mechanism)
        return SaslAuthenticateResponse(
            ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=failure(request.mechanism[:40])
        )

    def _note(self, context: CallContext, failed: LoginFailed, reason: str, mechanism: str) -> None:
        """Log the failure for the operator."""
        listener, now_s = context.listener, asyncio.get_running_loop().time()
        self._notices.say(now_s, listener, context.peer, reason, "refusing the login of")
        protocol = context.session.protocol.name
        self._control.login_failed(context, failed.tried, protocol, reason, mechanism, failed.cause)
