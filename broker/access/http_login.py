"""Authenticates clients of the HTTP listener, and decides whether they may see more than everybody (``http.auth``).

Passwords and tokens go through the mechanisms PLAIN and OAUTHBEARER, so threads, delays and texts are those of any
other login.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.logins import Image, LoggedIn, LoginFailed, NodeLogins
from tidelog.model.clock import Clock
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.http_auth import BASIC, BEARER, MTLS, NO_AUTH
from tidelog.model.settings.listener_security import OAUTHBEARER, PLAIN
from tidelog.proto.transport.network import Address, CallContext
from tidelog.security.acls import AclOperation
from tidelog.security.sasl import Challenge
from tidelog.security.session import Session
from tidelog.security.tls_store import NotAuthenticated, TlsStore

KEPT_S: Final = 60.0
"""How long a password or token stays valid without being checked again, unless its user is deleted."""
KEPT_MAX: Final = 1_000
MECHANISMS: Final = {BASIC: PLAIN, BEARER: OAUTHBEARER}


class Admission(enum.Enum):
    """What a client may see."""

    ALL = enum.auto()
    UNKNOWN = enum.auto()
    """One word, because the client is unknown."""
    DENIED = enum.auto()
    """One word, because the client lacks DESCRIBE on the cluster."""


class HttpLogin:
    """See the module. ``control``: ``None`` while the node starts, when everybody is treated as unknown."""

    def __init__(
        self,
        config: NodeConfig,
        listener: str,
        tls: TlsStore | None,
        control: Callable[[], AccessControl | None],
        image: Image,
        clock: Clock,
    ) -> None:
        self.auth: Final = config.http_auth
        self._listener = listener
        self._tls = tls
        self._control = control
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[LoggedIn, float]] = {}
        mechanism = MECHANISMS.get(self.auth)
        self._all_logins = None if mechanism is None else NodeLogins(config, image, clock, {listener: (mechanism,)})

    @property
    def challenge(self) -> str:
        """The challenge sent to clients; "" if the method has no header."""
        return {BASIC: 'Basic realm="tidelog"', BEARER: 'Bearer realm="tidelog"'}.get(self.auth, "")

    async def admit(self, peer: Address, authorization: str, certificate: bytes | None) -> Admission:
        """Return what a client may see. ``authorization``: the header; ``certificate``: the client's, as DER."""
        if self.auth == NO_AUTH:
            return Admission.ALL
        control = self._control()
        if control is None:
            return Admission.UNKNOWN
        context = CallContext(self._listener, str(peer))
        session = self._of_certificate(certificate) if self.auth == MTLS else None
        if self.auth in MECHANISMS:
            session = await self._logged_in(context, authorization, control)
        if session is None:
            return Admission.UNKNOWN
        access = control.of(CallContext(self._listener, str(peer), session), "GetMetrics")
        return Admission.ALL if access is None or access.cluster(AclOperation.DESCRIBE) else Admission.DENIED

    def close(self) -> None:
        if self._all_logins is not None:
            self._all_logins.close()

    def _of_certificate(self, certificate: bytes | None) -> Session | None:
        if certificate is None or self._tls is None:
            return None
        try:
            return self._tls.session_of(certificate)
        except (NotAuthenticated, ValueError):
            return None

    async def _logged_in(self, context: CallContext, authorization: str, control: AccessControl) -> Session | None:
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() != self.auth or not shown:
            return None
        now_s = asyncio.get_running_loop().time()
        key = hmac.digest(self._secret, authorization.encode("utf-8", "surrogateescape"), "sha256")
        known = self._known.get(key)
        if known is not None and now_s < known[1] and not known[0].over(now_s):
            return known[0].session
        found = await self._judge(shown)
        if isinstance(found, LoginFailed):
            mechanism = MECHANISMS[self.auth]
            control.login_failed(context, found.tried, f"HTTP {self.auth}", found.reason, mechanism, found.cause)
            return None
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        self._known[key] = found, now_s + KEPT_S
        return found.session

    async def _judge(self, shown: str) -> LoggedIn | LoginFailed:
        assert self._all_logins is not None
        logins = self._all_logins.find(self._listener)
        assert logins is not None
        login = logins.begin(MECHANISMS[self.auth])
        assert login is not None
        if self.auth == BEARER:
            found = await login.step(b"n,,\x01auth=Bearer " + shown.encode("utf-8", "replace") + b"\x01\x01")
        else:
            try:
                user, _, password = base64.b64decode(shown, validate=True).partition(b":")
            except ValueError:  # other characters than base64's, perhaps not even ASCII
                return await logins.failed("expected user:password in base64")
            found = await login.step(b"\0" + user + b"\0" + password)
        if isinstance(found, Challenge):  # it tells an OAUTHBEARER client that it is refused
            found = await login.step(b"\x01")
        return found if not isinstance(found, Challenge) else await logins.failed("expected no further challenge")
