"""Delegation tokens: what proves that somebody holds one, and who else may do what with it. Pure.

The *HMAC* of a token's id, by the key that all nodes share, is its secret: nobody keeps it, and every node computes it.
Source: KIP-48, KIP-373 and Kafka's ``DelegationTokenManager``, ``TokenInformation`` and ``DelegationTokenCache``.
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
    """What is known of a token; a metadata record and a call's answer have it. Principals as ``User:alice``, times in
    milliseconds since 1970."""

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
    """The secret of the token of this id: HmacSHA512, as in Kafka."""
    return hmac.digest(key.encode("utf-8"), token_id.encode("utf-8"), "sha512")


def password_of(token_hmac: bytes) -> str:
    """The password that a client logs in with: the HMAC in base64."""
    return base64.b64encode(token_hmac).decode("ascii")


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    return token.max_timestamp_ms < now_ms or token.expiration_timestamp_ms < now_ms


def may_renew(token: DelegationToken, principal: str) -> bool:
    """Whether a principal may renew and expire it (``DelegationTokenControlManager.allowedToRenew``)."""
    return principal == token.owner or principal in token.renewers


def is_of(token: DelegationToken, principal: str) -> bool:
    """Whether it is one of a principal's tokens, which it may always see (``TokenInformation.ownerOrRenewer``)."""
    return principal == token.requester or may_renew(token, principal)


class TokensByHmac:
    """Finds tokens by their secrets, each of which it computes once."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._seen: Mapping[str, object] | None = None
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def find(self, tokens: Mapping[str, T], wanted: bytes) -> T | None:
        """The token whose HMAC this is, among ``tokens`` by their ids: a mapping that never changes."""
        if tokens is not self._seen:
            self._take_over(tokens)
        return tokens.get(self._ids.get(wanted, ""))

    def _take_over(self, tokens: Mapping[str, object]) -> None:
        self._hmacs = {token_id: self._hmacs.get(token_id) or token_hmac(self._key, token_id) for token_id in tokens}
        self._ids = {found: token_id for token_id, found in self._hmacs.items()}
        self._seen = tokens


class TokenCredentials:
    """The tokens of the metadata log, as SCRAM asks for them.

    A token that is not there, or has expired, costs as much work as any other, and names a credential that no password
    fits. Salts follow from key and id, so that all nodes name the same.
    """

    def __init__(
        self, key: str, tokens: Callable[[], Mapping[str, DelegationToken]], now_ms: Callable[[], int]
    ) -> None:
        self._key = key
        self._tokens = tokens
        self._now_ms = now_ms
        # A key of its own: a salt is told to strangers, and must never be a part of a token's HMAC.
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
        """Whether it has neither expired nor been removed."""
        return self._valid(token_id) is not None

    def _valid(self, token_id: str) -> DelegationToken | None:
        token = self._tokens().get(token_id)
        return None if token is None or is_expired(token, self._now_ms()) else token
