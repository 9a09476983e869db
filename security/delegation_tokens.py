"""Delegation tokens: how a holder proves possession, and what others may do with a token. Pure.

A token's secret is the *HMAC* of its id under a key that all nodes share: nobody stores it, and every node can compute
it. Source: KIP-48, KIP-373 and Kafka's ``DelegationTokenManager``, ``TokenInformation`` and ``DelegationTokenCache``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from tidelog.security.scram import (
    ITERATIONS_MIN,
    DelegatedCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

SALT_BYTES: Final = 32


class DelegationToken(Protocol):
    """The properties of a token; implemented by a metadata record and by a response. Principals are written
    ``User:alice``, times are milliseconds since 1970."""

    @property
    def token_id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def requester(self) -> str: ...
    @property
    def renewers(self) -> tuple[str, ...]: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def expiration_timestamp_ms(self) -> int: ...


T = TypeVar("T", bound=DelegationToken)


def token_hmac(key: str, token_id: str) -> bytes:
    """Return the secret of a token: HmacSHA512 of its id, as in Kafka."""
    return hmac.digest(key.encode("utf-8"), token_id.encode("utf-8"), "sha512")


def password_of(token_hmac: bytes) -> str:
    """Return the password that a client logs in with: the HMAC in base64."""
    return base64.b64encode(token_hmac).decode("ascii")


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    return token.max_timestamp_ms < now_ms or token.expiration_timestamp_ms < now_ms


def may_renew(token: DelegationToken, principal: str) -> bool:
    """Return whether a principal may renew and expire the token (``DelegationTokenControlManager.allowedToRenew``)."""
    return principal == token.owner or principal in token.renewers


def is_of(token: DelegationToken, principal: str) -> bool:
    """Return whether a principal owns or may renew the token, and so may always see it
    (``TokenInformation.ownerOrRenewer``)."""
    return principal == token.requester or may_renew(token, principal)


class TokensByHmac:
    """Finds tokens by their secrets, computing each secret once."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._seen: Mapping[str, object] | None = None
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def find(self, tokens: Mapping[str, T], wanted: bytes) -> T | None:
        """Return the token with this HMAC among ``tokens``, an immutable mapping by id."""
        if tokens is not self._seen:
            self._take_over(tokens)
        return tokens.get(self._ids.get(wanted, ""))

    def _take_over(self, tokens: Mapping[str, object]) -> None:
        self._hmacs = {token_id: self._hmacs.get(token_id) or token_hmac(self._key, token_id) for token_id in tokens}
        self._ids = {found: token_id for token_id, found in self._hmacs.items()}
        self._seen = tokens


class TokenCredentials:
    """Provides SCRAM credentials for the tokens of the metadata log.

    A missing or expired token costs as much work as a valid one, and yields a credential that no password fits. Salts
    are derived from key and id, so all nodes use the same.
    """

    def __init__(
        self, key: str, tokens: Callable[[], Mapping[str, DelegationToken]], now_ms: Callable[[], int]
    ) -> None:
        self._key = key
        self._tokens = tokens
        self._now_ms = now_ms
        # A separate key: strangers see the salt, so it must never be part of a token's HMAC.
        self._salts_key = hmac.digest(key.encode("utf-8"), b"the salts of delegation tokens", "sha512")

    def find(self, token_id: str, mechanism: ScramMechanism) -> DelegatedCredential:
        """A :data:`tidelog.security.scram.FindToken`."""
        token = self._valid(token_id)
        made = hmac.digest(self._salts_key, f"{mechanism.sasl_name} {token_id}".encode(), "sha512")
        salt = hashlib.shake_256(made).digest(SALT_BYTES)
        secret = secrets.token_bytes(64) if token is None else token_hmac(self._key, token_id)
        salted = salted_password(mechanism, password_of(secret), salt, ITERATIONS_MIN)
        credential = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        if token is None:
            return DelegatedCredential(credential, "", 0)
        return DelegatedCredential(credential, token.owner, token.expiration_timestamp_ms)

    def is_valid(self, token_id: str) -> bool:
        """Return whether the token exists and has not expired."""
        return self._valid(token_id) is not None

    def _valid(self, token_id: str) -> DelegationToken | None:
        token = self._tokens().get(token_id)
        return None if token is None or is_expired(token, self._now_ms()) else token
