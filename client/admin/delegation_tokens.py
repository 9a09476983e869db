"""The admin client's calls about delegation tokens, under the names of Kafka's ``Admin`` (KIP-48, KIP-373)."""

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

    To log in by it: ``sasl_mechanism="SCRAM-SHA-512"``, ``sasl_username=token.token_id``,
    ``sasl_password=token.hmac_as_base64``, ``sasl_tokenauth=True``.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    expiry_timestamp: int
    """When it expires, unless it is renewed."""
    max_timestamp: int
    """When it expires at the latest."""
    hmac: bytes = field(repr=False)
    """Whoever knows it can log in."""

    @property
    def hmac_as_base64(self) -> str:
        """The password that goes with the token."""
        return password_of(self.hmac)


class DelegationTokenAdmin(AdminBase):
    """The part of :class:`tidelog.client.admin.admin.AsyncAdmin` that is about delegation tokens. All its calls raise
    ``DelegationTokenAuthDisabledError`` (the nodes have no key) and ``DelegationTokenRequestNotAllowedError`` (nobody
    logged in, or by a token, or not over TLS)."""

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Make a token of the caller's, or of ``owner``'s, that ``renewers`` may renew and expire as well. Principals
        as ``User:alice``. ``max_lifetime_ms``: -1 for as long as the cluster lets it live. If the connection is lost
        meanwhile, there may be a second one, which nobody knows and which expires.

        Raises ``DelegationTokenAuthorizationFailedError``, ``InvalidPrincipalTypeError``, ``InvalidRequestError``,
        ``PolicyViolationError`` (there are too many), ``RequestTimedOutError`` (it is unknown whether there is one).
        """
        request = CreateDelegationTokenRequest(owner, tuple(renewers), max_lifetime_ms)
        answer = await self._ask(request, None, timeout)
        all_or_raise((answer,), lambda _: "delegation token")
        assert answer.token is not None, "expected the new token, found an answer without"
        return _public(answer.token)

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_time_period_ms: int = -1, timeout: float | None = None
    ) -> int:
        """Renew one's own token, or one that the caller may renew; return when it expires then. -1: as late as the
        cluster lets it.

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
        """Let a token expire after so long, or remove it at once (-1); return when it expires then. Connections that
        logged in by it end with it.

        Raises ``DelegationTokenNotFoundError``, ``DelegationTokenExpiredError``,
        ``DelegationTokenOwnerMismatchError``, ``RequestTimedOutError`` (it is unknown whether it is gone).
        """
        request = ExpireDelegationTokenRequest(hmac, expiry_time_period_ms)
        answer = await self._ask(request, None, timeout)
        all_or_raise((answer,), lambda _: "delegation token")
        return answer.expiry_timestamp_ms

    async def describe_delegation_token(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that the caller may see: those that it owns, asked for or may renew, and what access control lists
        allow. ``owners``: only those that one of these owns, asked for or may renew."""
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
