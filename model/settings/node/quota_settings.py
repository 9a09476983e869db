"""A node's settings for client quotas. Source: Kafka's ``QuotaConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.settings.config_def import integer


@dataclass(frozen=True)
class QuotaSettings:
    """A node's settings for how quotas are measured."""

    quota_window_num: int = integer(
        11, "Windows over which the use of bytes, request time and connections is measured.", at_least=1, at_most=1_000
    )
    quota_window_size_seconds: int = integer(1, "Length of each of these windows.", at_least=1, at_most=3_600)
