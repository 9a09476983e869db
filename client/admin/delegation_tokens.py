"""Admin client calls for delegation tokens, under the names of Kafka's ``Admin`` (KIP-48, KIP-373)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.client.admin.base import AdminBase, all_or_raise
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.security.delegation_tokens import password_of


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token that lets others log in as ``owner``. Principals as ``User:alice``, times in milliseconds since 1970.

    To log in with it: ``sasl_mechanism="SCRAM-SHA-512"``, ``sasl_username=token.token_id``,
    ``sasl_password=token.hmac_as_base64``, ``sasl_tokenauth=True``.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    expiry_timestamp: int
    """When it expires unless renewed."""
    max_timestamp: int
    """When it expires at the latest."""
    hmac: bytes = field(repr=False)
    """Anyone who knows it can log in."""

    @property
    def hmac_as_base64(self) -> str:
        """The token's password."""
        return password_of(self.hmac)


class DelegationTokenAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for delegation tokens. All of them raise
    ``DelegationTokenAuthDisabledError`` (the nodes have no key) and ``DelegationTokenRequestNotAllowedError`` (the
    caller is not logged in, or logged in with a token, or does not use TLS)."""

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Create a token for the caller or for ``owner``, which ``renewers`` may also renew and expire. Principals as
        ``User:alice``. ``max_lifetime_ms``: -1 for the cluster's maximum. If the connection is lost in the meantime,
        there may be a second token, which nobody knows and which expires.

        Raises ``DelegationTokenAuthorizationFailedError``, ``InvalidPrincipalTypeError``, ``InvalidRequestError``,
        ``PolicyViolationError`` (too many tokens), ``RequestTimedOutError`` (it is unknown whether one was created).
        """
        request = CreateDelegationTokenRequest(owner, tuple(renewers), max_lifetime_ms)
        answer = await self._ask(request, None, timeout)
        all_or_raise((answer,), lambda _: "delegation token")
        assert answer.token is not None, "expected the new token, found an answer without"
        return _public(answer.token)

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_time_period_ms: int = -1, timeout: float | None = None
    ) -> int:
        """Renew a token that the caller owns or may renew. Returns its new expiry time. -1: the cluster's maximum.

        Raises ``DelegationTokenNotFoundError``, ``DelegationTokenExpiredError``,
        ``DelegationTokenOwnerMismatchError``.
        """
        request = RenewDelegationTokenRequest(hmac, renew_time_period_ms)
        answer = await self._ask(request, lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "delegation token")
        return answer.expiry_timestamp_ms

    async def expire_delegation_token(
        self, hmac: bytes, *, expiry_time_period_ms: int = -1, timeout: float | None = None
    ) -> int:
        """Let a token expire after this time, or remove it now (-1). Returns its new expiry time. Connections that
        logged in with it are closed when it expires.

        Raises ``DelegationTokenNotFoundError``, ``DelegationTokenExpiredError``, ``DelegationTokenOwnerMismatchError``,
        ``RequestTimedOutError`` (it is unknown whether it was removed).
        """
        request = ExpireDelegationTokenRequest(hmac, expiry_time_period_ms)
        answer = await self._ask(request, None, timeout)
        all_or_raise((answer,), lambda _: "delegation token")
        return answer.expiry_timestamp_ms

    async def describe_delegation_token(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """Return the tokens that the caller may see: those that it owns, requested or may renew, and those that access
        control lists allow. ``owners``: only tokens that one of these owns, requested or may renew."""
        request = DescribeDelegationTokenRequest(() if owners is None else tuple(owners), owners is None)
        answer = await self._ask(request, lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "delegation tokens")
        return [_public(found) for found in answer.tokens]


def _public(found: DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        found.token_id,
        found.owner,
        found.requester,
        found.renewers,
        found.issue_timestamp_ms,
        found.expiration_timestamp_ms,
        found.max_timestamp_ms,
        found.hmac,
    )
