"""Records that nobody wants any more. Pure, but for the interceptor's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.client.config.interceptors import ConsumerInterceptor
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.dead_letters import past_of
from tidelog.model.clock import Clock, SystemClock
from tidelog.proto.calls.api import ConfigResource, DescribedConfig
from tidelog.proto.records.message_headers import EXPIRES_AT

TTL: Final = "message.ttl.ms"


class TimeToLive(ConsumerInterceptor):
    """Leaves out expired records: those whose header ``tidelog-expires-at`` (ms since the epoch, as text) has passed,
    and those whose timestamp is more than ``ttl_ms`` ago; a mapping says so by topic. What cannot be read does not
    expire.

    As one of a consumer's ``interceptor_classes`` it keeps them out of what ``poll`` returns. As ``time_to_live`` of
    ``Workers`` it does so at the moment a worker is free, and with ``dead_letters`` they go to the dead letters.
    ``skipped`` counts them. Raises ``ValueError``.
    """

    def __init__(
        self, ttl_ms: int | Mapping[str, int] | None = None, *, dead_letters: bool = False, _clock: Clock | None = None
    ) -> None:
        for ttl in ttl_ms.values() if isinstance(ttl_ms, Mapping) else () if ttl_ms is None else (ttl_ms,):
            if ttl < 0:
                raise ValueError(f"ttl_ms: expected 0 or more, found {ttl}")
        self.ttl_ms = ttl_ms
        self.dead_letters = dead_letters
        self.skipped = 0
        self._clock = _clock or SystemClock()

    @classmethod
    def of(
        cls, configs: Mapping[ConfigResource, Mapping[str, DescribedConfig]], *, dead_letters: bool = False
    ) -> TimeToLive:
        """Take the topics' own ``message.ttl.ms`` from the result of ``Admin.describe_configs``."""
        told = {resource.name: int(found[TTL].value or -1) for resource, found in configs.items() if TTL in found}
        return cls({topic: ttl for topic, ttl in told.items() if ttl >= 0}, dead_letters=dead_letters)

    def expires_ms(self, record: ConsumerRecord) -> int | None:
        """From when on nobody wants this record; ``None``: never. One that came again through a delay topic counts from
        its first timestamp."""
        times = []
        for name, value in record.headers:
            if name == EXPIRES_AT and value is not None and value.isdigit() and len(value) < 20:
                times.append(int(value))
        if self.ttl_ms is not None:
            past = past_of(record)
            ttl = self.ttl_ms.get(past.topic) if isinstance(self.ttl_ms, Mapping) else self.ttl_ms
            if ttl is not None and past.timestamp >= 0:
                times.append(past.timestamp + ttl)
        return min(times, default=None)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        now_ms = self._clock.now_ms()
        wanted = [record for record in records if (until := self.expires_ms(record)) is None or now_ms < until]
        self.skipped += len(records) - len(wanted)
        return wanted
