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
        "The key that signs delegation tokens, the same on all nodes. Without it there are no such tokens.",
    )
    delegation_token_max_lifetime_ms: int = long(
        7 * 24 * _HOUR_MS, "Longest life of a delegation token, renewals included.", at_least=1
    )
    delegation_token_expiry_time_ms: int = long(
        24 * _HOUR_MS, "Time after which a delegation token expires unless it is renewed.", at_least=1
    )
    delegation_token_expiry_check_interval_ms: int = long(
        _HOUR_MS, "Time between the active controller's checks for expired delegation tokens.", at_least=1
    )
    delegation_token_max_per_owner: int = integer(
        1_000,
        "Most delegation tokens of one owner, including expired ones that are not removed yet; the limit for all "
        "owners is 10,000.",
        at_least=1,
    )
