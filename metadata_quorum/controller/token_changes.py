"""Creates, renews, expires and removes delegation tokens. Pure.

Source: Kafka's ``DelegationTokenControlManager`` (KIP-48, KIP-373).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.proto.logs.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from tidelog.security.acls import EVERYBODY
from tidelog.security.delegation_tokens import TokensByHmac, is_expired, may_renew, token_hmac
from tidelog.security.principal import USER, Principal

TOKENS_MAX: Final = 10_000
"""Most tokens in a cluster. Each adds some microseconds to the first renewal at a new active controller."""
RENEWERS_MAX: Final = 100
PRINCIPAL_BYTES_MAX: Final = 1_024
REMOVALS_MAX: Final = 1_000
"""Most tokens that one pass removes (``MAX_RECORDS_PER_EXPIRATION``); the next pass continues."""

DISABLED: Final = "expected delegation.token.secret.key on every node, found none: there are no delegation tokens"
_NONE: Final = ErrorCode.NONE


class TokenChanges:
    """See the module. Times are milliseconds since 1970. ``rng`` draws ids."""

    def __init__(self, config: NodeConfig, rng: random.Random) -> None:
        self._key = config.delegation_token_secret_key
        self._max_lifetime_ms = config.delegation_token_max_lifetime_ms
        self._renewal_ms = config.delegation_token_expiry_time_ms
        self._per_owner_max = config.delegation_token_max_per_owner
        self._rng = rng
        self._known = TokensByHmac(self._key or "")

    def create(
        self, image: MetadataImage, request: CreateDelegationTokenRequest, now_ms: int
    ) -> Decision[CreateDelegationTokenResponse]:
        fault = self._creation_fault(image, request)
        if fault is not None:
            return Decision((), CreateDelegationTokenResponse(fault.code, error_message=fault.message))
        assert self._key
        life_ms = self._max_lifetime_ms
        if request.max_lifetime_ms > 0:
            life_ms = min(life_ms, request.max_lifetime_ms)
        max_ms = min(now_ms + life_ms, LONG_MAX)
        record = DelegationTokenRecord(
            id_text(random_id(self._rng)),
            request.owner or request.requester,
            request.requester,
            tuple(dict.fromkeys(request.renewers)),
            now_ms,
            max_ms,
            min(now_ms + self._renewal_ms, max_ms),
        )
        return Decision((record,), CreateDelegationTokenResponse(_NONE, described(record, self._key)))

    def renew(
        self, image: MetadataImage, request: RenewDelegationTokenRequest, now_ms: int
    ) -> Decision[RenewDelegationTokenResponse]:
        found = self._find(image, request.hmac)
        if isinstance(found, DelegationTokenRecord):
            # In this order, as in Kafka; to expire one it is the other way round.
            found = _unless_expired(found, now_ms)
        if isinstance(found, DelegationTokenRecord):
            found = _if_of(found, request.requester)
        if isinstance(found, Refusal):
            return Decision((), RenewDelegationTokenResponse(found.code, error_message=found.message))
        period_ms = self._renewal_ms
        if request.renew_period_ms > 0:
            period_ms = min(period_ms, request.renew_period_ms)
        until_ms = min(now_ms + period_ms, found.max_timestamp_ms)
        record = replace(found, expiration_timestamp_ms=until_ms)
        return Decision((record,), RenewDelegationTokenResponse(_NONE, until_ms, found.token_id))

    def expire(
        self, image: MetadataImage, request: ExpireDelegationTokenRequest, now_ms: int
    ) -> Decision[ExpireDelegationTokenResponse]:
        found = self._find(image, request.hmac)
        if isinstance(found, DelegationTokenRecord):
            found = _if_of(found, request.requester)
        at_once = request.expiry_time_period_ms < 0
        if isinstance(found, DelegationTokenRecord) and not at_once:
            found = _unless_expired(found, now_ms)
        if isinstance(found, Refusal):
            return Decision((), ExpireDelegationTokenResponse(found.code, error_message=found.message))
        token_id = found.token_id
        if at_once:
            gone = RemoveDelegationTokenRecord(token_id)
            return Decision((gone,), ExpireDelegationTokenResponse(_NONE, now_ms, token_id))
        until_ms = min(now_ms + request.expiry_time_period_ms, found.max_timestamp_ms)
        record = replace(found, expiration_timestamp_ms=until_ms)
        return Decision((record,), ExpireDelegationTokenResponse(_NONE, until_ms, token_id))

    def sweep(self, image: MetadataImage, now_ms: int) -> list[RemoveDelegationTokenRecord]:
        """Remove expired tokens, even without a key."""
        gone = sorted(found.token_id for found in image.delegation_tokens.values() if is_expired(found, now_ms))
        return [RemoveDelegationTokenRecord(token_id) for token_id in gone[:REMOVALS_MAX]]

    def _creation_fault(self, image: MetadataImage, request: CreateDelegationTokenRequest) -> Refusal | None:
        if not self._key:
            return Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, DISABLED)
        if len(request.renewers) > RENEWERS_MAX:
            text = f"expected at most {RENEWERS_MAX} renewers, found {len(request.renewers)}"
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        for principal in (request.owner or request.requester, *request.renewers):
            fault = _principal_fault(principal)
            if fault is not None:
                return fault
        if len(image.delegation_tokens) >= TOKENS_MAX:
            text = f"expected fewer than {TOKENS_MAX} delegation tokens, found as many: let some expire"
            return Refusal(ErrorCode.POLICY_VIOLATION, text)
        owner = request.owner or request.requester
        if sum([found.owner == owner for found in image.delegation_tokens.values()]) >= self._per_owner_max:
            text = (
                f"expected fewer than {self._per_owner_max} delegation tokens of {owner} "
                "(delegation.token.max.per.owner), found as many: let some expire, or expire them"
            )
            return Refusal(ErrorCode.POLICY_VIOLATION, text)
        return None

    def _find(self, image: MetadataImage, wanted: bytes) -> DelegationTokenRecord | Refusal:
        if not self._key:
            return Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, DISABLED)
        found = self._known.find(image.delegation_tokens, wanted)
        return found or Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "Delegation Token is not found on server.")


def described(record: DelegationTokenRecord, key: str) -> DescribedDelegationToken:
    """Return a token as its owner and its renewers may see it."""
    return DescribedDelegationToken(
        record.token_id,
        record.owner,
        record.requester,
        record.renewers,
        record.issue_timestamp_ms,
        record.max_timestamp_ms,
        record.expiration_timestamp_ms,
        token_hmac(key, record.token_id),
    )


def _unless_expired(found: DelegationTokenRecord, now_ms: int) -> DelegationTokenRecord | Refusal:
    if is_expired(found, now_ms):
        return Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "Delegation Token is expired.")
    return found


def _if_of(found: DelegationTokenRecord, requester: str) -> DelegationTokenRecord | Refusal:
    if not may_renew(found, requester):
        text = f"{requester} is neither the owner of the delegation token nor one of its renewers"
        return Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, text)
    return found


def _principal_fault(written: str) -> Refusal | None:
    """Refuse other principals than users, because only users log in. Kafka accepts any kind of owner, and authenticates
    the token's holder as the user of that name."""
    if len(written.encode()) > PRINCIPAL_BYTES_MAX:
        return Refusal(ErrorCode.INVALID_REQUEST, f"expected a principal of at most {PRINCIPAL_BYTES_MAX} bytes")
    try:
        kind = Principal.parse(written).kind
    except ValueError as fault:
        return Refusal(ErrorCode.INVALID_REQUEST, str(fault))
    if written == EVERYBODY:
        return Refusal(ErrorCode.INVALID_REQUEST, f"{EVERYBODY} stands for everybody in access control lists")
    if kind != USER:
        return Refusal(ErrorCode.INVALID_PRINCIPAL_TYPE, f"expected a principal of the kind {USER}, found {kind!r}")
    return None
