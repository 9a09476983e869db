"""Validates a JSON Web Token and names its user: signature, issuer, audience, time. Imported only if OAUTHBEARER is
enabled, because PyJWT costs memory.

The issuer's keys are fetched when the first token arrives, when they are too old, and when a token names an unknown
key, but at most once every ``RETRY_S``. Known keys stay in use while the issuer does not answer. Source: RFC 7515, RFC
7517, RFC 7519; Kafka's ``BrokerJwtValidator`` (KIP-768).
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import jwt
from jwt import exceptions as faults

from tidelog.model.classes.frozen import dataclass
from tidelog.security.acls import WILDCARD
from tidelog.security.issuer import IssuerError, fetch
from tidelog.security.sasl import Accepted, Cause, Costly, Rejected

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""How long to wait before asking an issuer that has answered again, whatever tokens strangers send."""
RETRY_FAILED_S: Final = 1.0
"""The same for an issuer that has not answered."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE: Final = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
"""By ``crv``. Algorithms with a shared secret are absent: an issuer's public key must not pass for a secret."""


_UNREADABLE: Final = (faults.PyJWTError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What parsing raises for unexpected JSON; PyJWT wraps only some of it."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """``algorithms``: the algorithms that a token signed by this key may name."""

    kid: str | None
    algorithms: tuple[str, ...]
    public: Any


@dataclass(frozen=True, slots=True)
class Expected:
    """What a valid token contains."""

    issuer: str
    audience: tuple[str, ...]
    clock_skew_s: int
    subject_claim: str


class IssuerKeys:
    """The keys of one issuer. ``now_s``: a monotonic clock."""

    def __init__(self, url: str, refresh_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._refresh_s = refresh_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._fetched_s: float | None = None
        self._next_s = -math.inf
        """When the issuer may be asked again."""
        self._fetching = False
        self.known: tuple[VerifyingKey, ...] = ()

    def find(self, kid: str | None) -> list[VerifyingKey]:
        """Return the keys that a token may refer to. A token without a key id refers to the only key."""
        if kid is None:
            return list(self.known) if len(self.known) == 1 else []
        return [key for key in self.known if key.kid == kid]

    def worth_a_fetch(self, kid: str | None) -> bool:
        """Return whether the issuer may have a key that is missing here, or may have withdrawn one."""
        now_s = self._now_s()
        if now_s < self._next_s and not self._fetching:
            return False
        return self._fetched_s is None or now_s - self._fetched_s >= self._refresh_s or not self.find(kid)

    def fetch(self) -> None:
        """Fetch the keys, unless another thread just did. Blocks. Raises :class:`IssuerError`."""
        with self._lock:
            now_s = self._now_s()
            if now_s < self._next_s:
                return
            self._next_s, self._fetching = now_s + RETRY_FAILED_S, True
            try:
                self.known = tuple(_keys_in(self._url, fetch(self._url)))
                self._fetched_s, self._next_s = now_s, now_s + RETRY_S
            finally:
                self._fetching = False


def _keys_in(url: str, data: bytes) -> Iterator[VerifyingKey]:
    try:
        found = [key for key in json.loads(data)["keys"] if key.get("use", "sig") == "sig" and "d" not in key]
    except (*_UNREADABLE, KeyError):
        raise IssuerError(f"{url}: expected a JWKS, JSON with a list of keys, found something else") from None
    usable = 0
    for key in found:
        allowed = _RSA if key.get("kty") == "RSA" else _OF_CURVE.get(str(key.get("crv")), ())
        algorithms = tuple(name for name in allowed if key.get("alg", name) == name)
        if not algorithms or key.get("kty") == "oct":
            continue
        try:
            yield VerifyingKey(key.get("kid"), algorithms, jwt.PyJWK(key, algorithms[0]).key)
            usable += 1
        except _UNREADABLE as error:
            log.warning("%s: ignoring key %r: %s", url, str(key.get("kid"))[:40], type(error).__name__)
    if not usable:
        raise IssuerError(f"{url}: expected a key for signatures (RSA, EC or Ed25519), found none")


class TokenJudge:
    """A :data:`tidelog.security.oauthbearer.Judge`."""

    def __init__(self, keys: IssuerKeys, expected: Expected) -> None:
        self._keys = keys
        self._expected = expected

    def __call__(self, token: str) -> Accepted | Rejected | Costly:
        try:
            header = jwt.get_unverified_header(token)
        except _UNREADABLE:
            return Rejected("expected a JSON Web Token, found something else", Cause.TOKEN)
        kid, algorithm = header.get("kid"), str(header.get("alg"))
        if not self._keys.worth_a_fetch(kid):
            return self._verified(token, kid, algorithm)

        def work() -> Accepted | Rejected:
            try:
                self._keys.fetch()
            except IssuerError as error:
                log.error("cannot read the token issuer's keys, keeping the old ones: %s", error)
            return self._verified(token, kid, algorithm)

        return Costly(work)

    def _verified(self, token: str, kid: str | None, algorithm: str) -> Accepted | Rejected:
        candidates = self._keys.find(kid)
        if not candidates:
            named = "without a key id" if kid is None else f"of key {kid[:40]!r}"
            return Rejected(f"expected a token signed by a key of the issuer's JWKS, found one {named}", Cause.TOKEN)
        key = next((found for found in candidates if algorithm in found.algorithms), None)
        if key is None:
            fit = ", ".join(name for found in candidates for name in found.algorithms)
            return Rejected(f"expected a token signed with {fit}, found {algorithm[:20]!r}", Cause.TOKEN)
        expected = self._expected
        try:
            claims = jwt.decode(
                token,
                key.public,
                [algorithm],
                options={"require": ["exp", "iat", expected.subject_claim]},
                audience=expected.audience,
                issuer=expected.issuer,
                leeway=expected.clock_skew_s,
            )
        except _UNREADABLE as error:
            return Rejected(self._told(error), Cause.TOKEN)
        name = claims[expected.subject_claim]
        if not isinstance(name, str) or not name or name == WILDCARD or not name.isprintable():
            return Rejected(
                f"expected the name of a user as claim {expected.subject_claim}, found something else", Cause.TOKEN
            )
        return Accepted(name, until_ms=int(claims["exp"]) * 1000)

    def _told(self, error: Exception) -> str:
        expected = self._expected
        match error:
            case faults.InvalidSignatureError():
                return "the token's signature does not match the key that it names"
            case faults.ExpiredSignatureError():
                return "the token has expired"
            case faults.ImmatureSignatureError():
                return "the token is not valid yet: do the clocks of node and issuer agree?"
            case faults.InvalidIssuerError():
                return f"expected a token from the issuer {expected.issuer}, found one from another"
            case faults.InvalidAudienceError():
                return f"expected a token for {' or '.join(expected.audience)}, found one for another audience"
            case faults.MissingRequiredClaimError():
                return f"expected a token with the claim {error.claim}, found none"
        return f"expected a JSON Web Token, found something else ({type(error).__name__})"
