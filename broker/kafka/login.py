"""The login of one Kafka connection: frames in, frames out. Source: KIP-43, KIP-152, KIP-368 and Kafka's
``SaslServerAuthenticator``.

===============  ==========================  ==================================================================
state            frame                       what happens
===============  ==========================  ==================================================================
HANDSHAKE        ApiVersions, at most twice  answered
HANDSHAKE        SaslHandshake               a known mechanism: TOKENS; else UNSUPPORTED_SASL_MECHANISM, the end
HANDSHAKE        SaslAuthenticate            ILLEGAL_SASL_STATE, the end
TOKENS           the mechanism's next token  a challenge; or the client is let in: DONE; or 58, the end
DONE             SaslHandshake               logs in again: TOKENS, with the mechanism and principal of before
DONE             any other                   not the login's; but the end if the login is over or the user is gone
HANDSHAKE,       any other                   the end, unread
TOKENS
===============  ==========================  ==================================================================

After SaslHandshake of version 0, tokens come and go bare, after version 1 as SaslAuthenticate.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from tidelog.broker.access.logins import LoggedIn, Login, LoginFailed, Logins
from tidelog.broker.kafka.wire.pending import CloseConnection
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka.headers import API_VERSIONS, RequestHeader, read_request_header, response_header
from tidelog.proto.kafka.messages import decode_request, encode_response
from tidelog.security.sasl import Cause, failure

SASL_HANDSHAKE: Final = 17
HANDSHAKE_MOST: Final = 1
SASL_AUTHENTICATE: Final = 36
AUTHENTICATE_MOST: Final = 2
VERSIONS_MAX: Final = 2
"""ApiVersions requests before the login: one in the client's newest version, and one more in a version that we know."""
AGAIN_S: Final = 1.0
"""Minimum time between a connection's logins, as in Kafka (``MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    TOKENS = enum.auto()
    DONE = enum.auto()


_DONE: Final = _State.DONE
"""In Python 3.11, to read a member from its class takes eight times as long, and each request does."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``logged_in``: the login is complete. ``over``: the connection ends after it; the text is for the log.
    ``failed``: the rejected login, if any, and its mechanism."""

    answer: bytes
    logged_in: LoggedIn | None = None
    over: str | None = None
    failed: LoginFailed | None = None
    mechanism: str = ""


class LoginOver(CloseConnection):
    """A login failed: the client gets ``answer``, and the connection ends."""

    def __init__(
        self, reason: str, answer: bytes | None = None, failed: LoginFailed | None = None, mechanism: str = ""
    ) -> None:
        super().__init__(reason)
        self.answer = answer
        self.failed = LoginFailed(reason) if failed is None else failed
        self.mechanism = mechanism


class KafkaLogin:
    """See the module. ``versions`` answers ApiVersions."""

    def __init__(self, logins: Logins, versions: Callable[[RequestHeader, memoryview], bytes]) -> None:
        self.receive_bytes_max: Final = logins.receive_bytes_max
        self.bare = False
        """Whether the next frames are bare tokens, of any length."""
        self._logins = logins
        self._versions = versions
        self._state = _State.HANDSHAKE
        self._versions_left = VERSIONS_MAX
        self._login: Login | None = None
        self._before: LoggedIn | None = None
        self._began_s = -AGAIN_S
        self._mechanism = ""

    def takes(self, frame: memoryview, now_s: float) -> bool:
        """Return whether a frame belongs to the login. Raises :class:`CloseConnection` if the login has expired."""
        if self._state is not _DONE:
            return True
        known = self._before
        assert known is not None
        if frame[1] == SASL_HANDSHAKE and frame[0] == 0:
            again = now_s - self._began_s >= AGAIN_S
            self._began_s = now_s if again else self._began_s
            return again
        if known.over(now_s):
            why = "has ended (connections.max.reauth.ms)" if known.still() else "is that of a deleted user or token"
            raise CloseConnection(f"the login of {known.session.principal} {why}")
        return False

    async def take(self, frame: memoryview) -> Reply:
        """Answer a frame of the login. Raises ``BadMessage`` or :class:`CloseConnection` to end the connection."""
        if self._state is _State.TOKENS:
            return await self._take_token(frame)
        header = read_request_header(frame)
        body = frame[header.end :]
        if header.api_key == SASL_HANDSHAKE and 0 <= header.api_version <= HANDSHAKE_MOST:
            return await self._shake_hands(header, body)
        if header.api_key == API_VERSIONS and self._versions_left:
            self._versions_left -= 1
            return Reply(self._versions(header, body))
        if header.api_key == SASL_AUTHENTICATE and 0 <= header.api_version <= AUTHENTICATE_MOST:
            text = "SaslAuthenticate before SaslHandshake"
            return Reply(_authenticated(header, ErrorCode.ILLEGAL_SASL_STATE, text), over=f"found {text}")
        raise CloseConnection(
            f"expected a login (security.protocol=SASL_…), found API {header.api_key} version {header.api_version}"
        )

    async def _shake_hands(self, header: RequestHeader, body: memoryview) -> Reply:
        asked = decode_request(SASL_HANDSHAKE, header.api_version, body).mechanism
        login = self._logins.begin(asked)
        if login is None or (self._before is not None and asked != self._mechanism):
            what = ", ".join(self._logins.mechanisms) if login is None else f"{self._mechanism} again"
            text = f"expected the mechanism {what}, found {asked[:40]!r}"
            failed = await self._logins.failed(text, cause=Cause.MECHANISM)
            answer = self._handshaken(header, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            return Reply(answer, over=failed.reason, failed=failed, mechanism=asked)
        self._login, self._mechanism = login, asked
        self._state = _State.TOKENS
        self.bare = header.api_version == 0
        return Reply(self._handshaken(header, ErrorCode.NONE))

    async def _take_token(self, frame: memoryview) -> Reply:
        assert self._login is not None
        if self.bare:
            header, token = None, bytes(frame)
        else:
            header = read_request_header(frame)
            if header.api_key != SASL_AUTHENTICATE or not 0 <= header.api_version <= AUTHENTICATE_MOST:
                raise CloseConnection(f"expected SaslAuthenticate, found API {header.api_key} within a login")
            token = bytes(decode_request(SASL_AUTHENTICATE, header.api_version, frame[header.end :]).auth_bytes)
        found = await self._login.step(token)
        if isinstance(found, LoggedIn) and self._before is not None:
            found = await self._same(self._before, found)
        if isinstance(found, LoginFailed):
            reason = f"{found.reason} ({self._mechanism})"
            text = failure(self._mechanism)
            if header is None:
                raise LoginOver(reason, None, found, self._mechanism)
            answer = _authenticated(header, ErrorCode.SASL_AUTHENTICATION_FAILED, text)
            return Reply(answer, over=reason, failed=found, mechanism=self._mechanism)
        done = found if isinstance(found, LoggedIn) else None
        if done is not None:
            self._state, self._login, self._before, self.bare = _State.DONE, None, done, False
        if header is None:
            return Reply(found.token, done)
        return Reply(_authenticated(header, ErrorCode.NONE, "", found.token, done.lifetime_ms if done else 0), done)

    async def _same(self, before: LoggedIn, found: LoggedIn) -> LoggedIn | LoginFailed:
        """Check that a client that logs in again is the same principal as before."""
        was, now = before.session.principal, found.session.principal
        if was == now:
            return found
        return await self._logins.failed(f"expected {was} again, found {now}", cause=Cause.PRINCIPAL)

    def _handshaken(self, header: RequestHeader, error: ErrorCode) -> bytes:
        values = {"error_code": error, "mechanisms": self._logins.mechanisms}
        head = response_header(SASL_HANDSHAKE, header.api_version, header.correlation_id)
        return head + encode_response(SASL_HANDSHAKE, header.api_version, values)


def _authenticated(
    header: RequestHeader, error: ErrorCode, text: str = "", token: bytes = b"", lifetime_ms: int = 0
) -> bytes:
    values = {
        "error_code": error,
        "error_message": text or None,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }
    head = response_header(SASL_AUTHENTICATE, header.api_version, header.correlation_id)
    return head + encode_response(SASL_AUTHENTICATE, header.api_version, values)
