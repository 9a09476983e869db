"""A node's settings for delegation tokens. Source: Kafka's ``DelegationTokenManagerConfigs`` (KIP-48)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.secret import Secret
from tidelog.model.settings.config_def import integer, long, password

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class DelegationTokenSettings:
    """Whether there are delegation tokens, and how long they live."""

    delegation_token_secret_key: Secret | None = password(  # noqa: RUF009 - a field, like the others
        None,
        "The key that delegation tokens are signed with, the same on all nodes. Without it there are no such tokens.",
    )
    delegation_token_max_lifetime_ms: int = long(
        7 * 24 * _HOUR_MS, "Longest life of a delegation token, renewals included.", at_least=1
    )
    delegation_token_expiry_time_ms: int = long(
        24 * _HOUR_MS, "Time after which a delegation token expires unless it is renewed.", at_least=1
    )
    delegation_token_expiry_check_interval_ms: int = long(
        _HOUR_MS, "Time between two searches of the active controller for expired delegation tokens.", at_least=1
    )
    delegation_token_max_per_owner: int = integer(
        1_000,
        "Most delegation tokens of one owner, expired ones that nobody has removed yet included; of 10,000 in all.",
        at_least=1,
    )
