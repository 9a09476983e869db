"""Quotas on partitions created and deleted (KIP-599): token buckets of the active controller. A new leader starts with
full ones. Source: Kafka's ``ControllerMutationQuotaManager``."""

from __future__ import annotations

from typing import Final

from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.quota_matching import bound_of
from tidelog.model.client_quotas import CONTROLLER_MUTATION_RATE
from tidelog.model.rates import TokenBucket
from tidelog.model.settings.node.quota_settings import QuotaSettings
from tidelog.proto.calls.api import Charged

BUCKETS_MAX: Final = 10_000
"""Most buckets; beyond that, full ones are dropped, and if there is none, all are."""
EXCEEDED: Final = "the quota on partitions created and deleted (controller_mutation_rate) is used up: try again later"


class Permits:
    """How much one request may still create or delete. ``throttle_ms``: how long its client should wait."""

    def __init__(self, bucket: TokenBucket | None = None, now_ms: int = 0, *, strict: bool = True) -> None:
        """``bucket``: ``None`` for no limit."""
        self._bucket = bucket
        self._now_ms = now_ms
        self._strict = strict
        self.throttle_ms = 0

    def take(self, partitions: int) -> bool:
        """Return whether that many partitions may be changed. Strict requests (from clients that know
        THROTTLING_QUOTA_EXCEEDED) may not while the bucket lacks tokens; others always may, and wait afterwards."""
        bucket, now_ms = self._bucket, self._now_ms
        if bucket is None:
            return True
        if self._strict and (lacking_ms := bucket.lacking_ms(now_ms)):
            self.throttle_ms = lacking_ms
            return False
        bucket.take(partitions, now_ms)
        if not self._strict:
            self.throttle_ms = bucket.lacking_ms(now_ms)
        return True


class MutationQuotas:
    """The buckets, one for all clients that share a quota."""

    def __init__(self, config: QuotaSettings) -> None:
        self._window = config.quota_window_num, config.quota_window_size_seconds * 1000
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def reset(self) -> None:
        """Forget the buckets, because another controller was active."""
        self._buckets.clear()

    def permits(self, image: MetadataImage, charged: Charged | None, now_ms: int) -> Permits:
        """Return the permits of a request charged to a client; ``None``: charged to nobody."""
        if charged is None or not image.quotas:
            return Permits()
        bound = bound_of(image.quotas, CONTROLLER_MUTATION_RATE, charged.user, charged.client_id)
        if bound is None:
            return Permits()
        shared = bound.user, bound.client_id
        bucket = self._buckets.get(shared)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._make_room(now_ms)
            bucket = self._buckets[shared] = TokenBucket(*self._window, bound.limit)
        bucket.rate = bound.limit
        return Permits(bucket, now_ms, strict=charged.strict)

    def _make_room(self, now_ms: int) -> None:
        self._buckets = {shared: found for shared, found in self._buckets.items() if not found.is_full(now_ms)}
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.clear()
