"""The calls about delegation tokens (KIP-48, KIP-373): create, renew, expire and describe them.

Conventions as in :mod:`tidelog.proto.calls.api`. Principals are texts such as ``User:alice``, times are milliseconds
since 1970. A broker fills in ``requester`` for the controller; a client's value is ignored.
"""

from __future__ import annotations

from dataclasses import field

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Change, Request, Response


@dataclass(frozen=True, slots=True)
class CreateDelegationTokenRequest(Change["CreateDelegationTokenResponse"]):
    """``owner`` ``None``: the caller. ``max_lifetime_ms`` of 0 or less: the cluster's maximum."""

    owner: str | None = None
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int = -1
    requester: str = ""


@dataclass(frozen=True, slots=True)
class DescribedDelegationToken:
    """A token, with the HMAC that proves its possession. Implements
    :class:`tidelog.security.delegation_tokens.DelegationToken`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int
    hmac: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class CreateDelegationTokenResponse(Response):
    error: ErrorCode
    token: DescribedDelegationToken | None = None
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class RenewDelegationTokenRequest(Change["RenewDelegationTokenResponse"]):
    """``renew_period_ms`` of 0 or less: the cluster's maximum."""

    hmac: bytes = field(repr=False)
    renew_period_ms: int = -1
    requester: str = ""


@dataclass(frozen=True, slots=True)
class RenewDelegationTokenResponse(Response):
    """``token_id``: the token's id, for a caller that presented its HMAC."""

    error: ErrorCode
    expiry_timestamp_ms: int = -1
    token_id: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ExpireDelegationTokenRequest(Change["ExpireDelegationTokenResponse"]):
    """Lets a token expire after this time; ``expiry_time_period_ms`` below 0 removes it immediately."""

    hmac: bytes = field(repr=False)
    expiry_time_period_ms: int = -1
    requester: str = ""


@dataclass(frozen=True, slots=True)
class ExpireDelegationTokenResponse(Response):
    """``token_id``: the token's id, for a caller that presented its HMAC."""

    error: ErrorCode
    expiry_timestamp_ms: int = -1
    token_id: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    """The tokens that these principals own, requested or may renew; ``all_owners``: everybody's. ``by_id``: only those
    in ``token_ids``."""

    owners: tuple[str, ...] = ()
    all_owners: bool = False
    token_ids: tuple[str, ...] = ()
    by_id: bool = False


@dataclass(frozen=True, slots=True)
class DescribeDelegationTokenResponse(Response):
    error: ErrorCode
    tokens: tuple[DescribedDelegationToken, ...] = ()
    error_message: str = ""
