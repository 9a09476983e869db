"""OAUTHBEARER, both ends: messages in, messages out. Pure: callers supply and judge tokens.

Source: RFC 7628, in the forms that Kafka accepts (``OAuthBearerClientInitialResponse``, KIP-255).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from tidelog.model.settings.listener_security import OAUTHBEARER
from tidelog.security.sasl import Accepted, Cause, Challenge, Costly, LoginRefused, Rejected, Step

TOKEN_BYTES_MAX: Final = 16 * 1024
"""Tokens also travel in HTTP headers, which are limited to this."""
ACKNOWLEDGED: Final = b"\x01"
"""What a client sends after it has learned why it was refused."""
REFUSED: Final = b'{"status":"invalid_token"}'
"""The only answer to a refused client, whatever the reason."""
_TOKEN: Final = "[-_.A-Za-z0-9]+"
_AUTH: Final = re.compile(f"auth=bearer +({_TOKEN})", re.IGNORECASE)
_HEADER: Final = re.compile("n,(?:a=([^,]*))?,")

Judge: TypeAlias = Callable[[str], Accepted | Rejected | Costly]
"""Judges whether a token is valid, and whose it is."""


class OAuthServer:
    """One login. Implements :class:`tidelog.security.sasl.ServerMechanism`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._refused: Rejected | None = None
        self.tried = ""

    def step(self, token: bytes) -> Step:
        if self._refused is not None:  # whatever the client answers
            return self._refused
        said = token.decode("utf-8", "replace").split("\x01")
        header = _HEADER.fullmatch(said[0])
        shown = [part for part in said[1:-2] if part[:5].lower() == "auth="]
        found = _AUTH.fullmatch(shown[0]) if len(shown) == 1 else None
        if header is None or said[-2:] != ["", ""] or found is None or len(found[1]) > TOKEN_BYTES_MAX:
            return Rejected("expected OAUTHBEARER's message with a token, found something else")
        judged, authorized = self._judge(found[1]), header[1]
        self.tried = _name_in(authorized) if authorized else ""
        if isinstance(judged, Costly):
            work = judged.work
            return Costly(lambda: self._outcome(work(), authorized))
        return self._outcome(judged, authorized)

    def _outcome(self, found: Accepted | Rejected | Challenge, authorized: str | None) -> Accepted | Challenge:
        if isinstance(found, Accepted) and authorized and _name_in(authorized) != found.name:
            found = Rejected("expected no authorization id, or the token's own name (CVE-2017-12610)", Cause.PRINCIPAL)
        if isinstance(found, Rejected):
            self._refused = found
            return Challenge(REFUSED)
        return found


def _name_in(spelt: str) -> str:
    return spelt.replace("=2C", ",").replace("=3D", "=")


class OAuthClient:
    """One login. Implements :class:`tidelog.security.sasl.ClientMechanism`. ``token`` may block, and may raise
    :class:`LoginRefused`."""

    name = OAUTHBEARER
    done = True

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def first(self) -> bytes:
        token = self._token()
        if not isinstance(token, str) or not re.fullmatch(_TOKEN, token):
            raise LoginRefused(
                "expected a token of letters, digits, dots, hyphens and underscores, found something else"
            )
        return f"n,,\x01auth=Bearer {token}\x01\x01".encode("ascii")

    def step(self, challenge: bytes) -> bytes | None:
        return ACKNOWLEDGED if challenge else None
