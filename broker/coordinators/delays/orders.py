"""What a record of a delay topic asks for, and what becomes of it once it is due. Pure.

When a record is due depends on the log alone, never on a setting or a clock: every leader must find the same order of
deliveries. So the longest delay is a constant, and what cannot be read is due at once, for the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.model.classes.frozen import dataclass
from tidelog.model.hashes.key_partition import partition_for_key
from tidelog.model.ids import Offset, TopicPartition
from tidelog.model.settings.topic_config import DAY_MS, TopicConfig
from tidelog.proto.records.decoder import Record
from tidelog.proto.records.message_headers import (
    CANCEL,
    DELAY_AGAIN,
    DELAY_DUE,
    DELAY_ID,
    DELAY_MS,
    DELAY_ORDERS,
    DELAY_TIMESTAMP,
    DELIVER_AT,
    DELIVER_TO,
    DLQ_ERRORS,
    DLQ_OWN,
    EXPIRES_AT,
)

DELAY_MS_MAX: Final = 365 * DAY_MS
"""Longest delay."""
ATTEMPTS_MAX: Final = 20
"""How often a record is appended again because its target is away, before it goes to the dead letters."""
AGAIN_FIRST_MS: Final = 1_000
AGAIN_MAX_MS: Final = 60_000
"""Delays of those attempts; they double."""
_TIME_MAX: Final = 2**62
_OURS: Final = DELAY_ORDERS | {DELAY_ID, DELAY_DUE, DELAY_TIMESTAMP}
_READ: Final = DELAY_ORDERS | {EXPIRES_AT}


class Headed(Protocol):
    """What says when a record is due: the decoder's and the SDK's records have it."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class Asked(NamedTuple):
    """A record's wishes. ``fault``: why they cannot be met, "" where they can."""

    due_ms: int
    cancels: Offset | None = None
    """The record asks for nothing else."""
    target: str | None = None
    expires_ms: int | None = None
    attempt: int = 0
    first_offset: Offset = Offset(-1)
    """Where the record stood when its client wrote it,"""
    first_ms: int = -1
    """when it was appended there,"""
    first_due_ms: int = -1
    """and when it was due, before anything put it off."""
    fault: str = ""


def asked_of(record: Headed) -> Asked:
    """Read a record's headers."""
    told = {name: value for name, value in record.headers if name in _READ}
    first_offset, first_ms, again_ms, attempt = record.offset, record.timestamp, None, 0
    try:
        if DELAY_AGAIN in told:
            again_ms, attempt, first_offset, first_ms = _again(told[DELAY_AGAIN], record.timestamp)
        if CANCEL in told:
            return Asked(record.timestamp, cancels=Offset(_number(CANCEL, told[CANCEL])))
        expires_ms = _number(EXPIRES_AT, told[EXPIRES_AT]) if EXPIRES_AT in told else None
        target = _text(DELIVER_TO, told[DELIVER_TO]) if DELIVER_TO in told else None
        due_ms = _due(told, first_ms)
    except ValueError as error:
        at_ms = record.timestamp if again_ms is None else again_ms
        return Asked(
            at_ms, attempt=attempt, first_offset=Offset(first_offset), first_ms=first_ms, fault=f"headers: {error}"
        )
    return Asked(
        max(due_ms if again_ms is None else again_ms, record.timestamp),
        None,
        target,
        expires_ms,
        attempt,
        Offset(first_offset),
        first_ms,
        max(due_ms, first_ms),
    )


def plain_due_ms(record: Headed) -> int | None:
    """When a record is due, as :func:`asked_of` finds, in a fraction of the time; ``None`` if it is not so simple."""
    timestamp, due_ms = record.timestamp, None
    for name, value in record.headers:
        if name == DELIVER_AT or name == DELAY_MS:  # noqa: SIM109 (a tuple costs more)
            if due_ms is not None or value is None or len(value) > 15 or not value.isdigit():
                return None
            due_ms = int(value) if name == DELIVER_AT else timestamp + int(value)
        elif name not in _READ:
            continue
        elif name == DELIVER_TO:
            if value is None or not value.isascii():
                return None
        elif name != EXPIRES_AT or value is None or len(value) > 15 or not value.isdigit():
            return None
    if due_ms is None or due_ms - timestamp > DELAY_MS_MAX:
        return None
    return due_ms if due_ms > timestamp else timestamp


def _due(told: dict[str, bytes | None], first_ms: int) -> int:
    if DELIVER_AT in told:
        due_ms = _number(DELIVER_AT, told[DELIVER_AT])
    elif DELAY_MS in told:
        due_ms = first_ms + _number(DELAY_MS, told[DELAY_MS])
    else:
        raise ValueError(f"expected {DELIVER_AT} or {DELAY_MS}, found neither")
    if due_ms - first_ms > DELAY_MS_MAX:
        raise ValueError(f"expected a delay of at most {DELAY_MS_MAX} ms (365 days), found {due_ms - first_ms}")
    return due_ms


def _text(name: str, value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name}: expected text in UTF-8, found {(value or b'')[:40]!r}") from None


def _number(name: str, value: bytes | None) -> int:
    text = _text(name, value)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _TIME_MAX):
        raise ValueError(f"{name}: expected a whole number from 0 on, found {text[:40]!r}")
    return int(text)


def _again(value: bytes | None, appended_ms: int) -> tuple[int, int, int, int]:
    parts = _text(DELAY_AGAIN, value).split(",")
    if len(parts) != 4:
        raise ValueError(f"{DELAY_AGAIN}: expected four numbers, found {','.join(parts)[:80]!r}")
    due_ms, attempt, offset, first_ms = (_number(DELAY_AGAIN, part.encode()) for part in parts)
    if due_ms - appended_ms > DELAY_MS_MAX:  # no leader wrote that
        raise ValueError(f"{DELAY_AGAIN}: expected a delay of at most {DELAY_MS_MAX} ms, found {due_ms - appended_ms}")
    return due_ms, attempt, offset, first_ms


# --- Delivery -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A topic as the metadata knows it."""

    name: str
    partitions: int
    config: TopicConfig
    away: frozenset[int] = frozenset()
    """Partitions without a leader that could be reached."""


FindTarget = Callable[[str], Target | None]


class Sent(NamedTuple):
    """A record on its way into a partition."""

    to: TopicPartition
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    kind: str
    """What it is: see below."""


def size_of(record: Record | Sent) -> int:
    """Bytes of a record, about."""
    size = 40 + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 8 + len(name) + len(value or b"")
    return size


DELIVERED: Final = "delivered"
DEAD: Final = "dead"
AGAIN: Final = "again"


def target_fault(source: TopicPartition, config: TopicConfig, name: str, target: Target | None) -> str:
    """Why a delay topic's record must not go to a topic; "" if it may. Both topics must have opted in."""
    if not name:
        return f"expected {DELIVER_TO}, or delay.target of {source.topic}, found neither"
    if name != config.delay_target and name not in config.delay_targets:
        return f"expected a topic of delay.target or delay.targets of {source.topic}, found {name[:249]!r}"
    if target is None:
        return f"there is no topic {name!r}"
    if target.config.delay_enable:
        return f"expected a topic without delay.enable, found {name!r}, from where records might come back for ever"
    if source.topic not in target.config.delay_sources:
        return f"expected {source.topic!r} among delay.sources of {name!r}, found {list(target.config.delay_sources)}"
    return ""


class Router:
    """Decides where due records of one partition go."""

    def __init__(self, source: TopicPartition, config: TopicConfig, find: FindTarget, now_ms: int) -> None:
        """``find`` looks topics up in the metadata; it is asked once for each."""
        self._source = source
        self._source_text = str(source)
        self._config = config
        self._find = find
        self._now_ms = now_ms
        self._targets: dict[str, Target | None] = {}

    def route(self, record: Record, asked: Asked, refusal: str = "") -> Sent | str:
        """``refusal``: why the target has refused the record before. Returns what is to be done, or a text that says
        why nothing can be done for now: the dead letters cannot be had."""
        reason, fault = "invalid", asked.fault
        name = asked.target or self._config.delay_target
        target = None
        if not fault:
            reason, fault = "undeliverable", refusal
        if not fault and asked.expires_ms is not None and asked.expires_ms <= self._now_ms:
            reason, fault = "expired", f"{EXPIRES_AT}: {asked.expires_ms}, found {self._now_ms}"
        if not fault:
            target = self._target(name)
            fault = target_fault(self._source, self._config, name, target)
        if not fault and target is not None and 0 <= target.config.message_ttl_ms <= self._now_ms - asked.first_due_ms:
            reason, fault = "expired", f"message.ttl.ms of {name}: due at {asked.first_due_ms}, found {self._now_ms}"
        if not fault:
            assert target is not None
            partition = self._partition(target, record, asked)
            if partition not in target.away:
                return self._delivered(TopicPartition(name, partition), record, asked)
            if asked.attempt < ATTEMPTS_MAX:
                return self._again(record, asked)
            fault = f"{name}-{partition} had no leader in {ATTEMPTS_MAX} attempts"
        return self._dead(record, asked, reason, fault)

    def _target(self, name: str) -> Target | None:
        if name not in self._targets:
            self._targets[name] = self._find(name)
        return self._targets[name]

    def _partition(self, target: Target, record: Record, asked: Asked) -> int:
        """As the Java client chooses; records without a key go round."""
        if record.key is None:
            return (self._source.partition + asked.first_offset) % target.partitions
        return partition_for_key(record.key, target.partitions)

    def _delivered(self, to: TopicPartition, record: Record, asked: Asked) -> Sent:
        headers = [pair for pair in record.headers if pair[0] not in _OURS]
        headers += (
            (DELAY_ID, f"{self._source_text}-{asked.first_offset}".encode()),
            (DELAY_DUE, b"%d" % asked.first_due_ms),
            (DELAY_TIMESTAMP, b"%d" % asked.first_ms),
        )
        return Sent(to, asked.due_ms, record.key, record.value, tuple(headers), DELIVERED)

    def _again(self, record: Record, asked: Asked) -> Sent:
        delay_ms = min(AGAIN_FIRST_MS << min(asked.attempt, 16), AGAIN_MAX_MS)
        again = f"{self._now_ms + delay_ms},{asked.attempt + 1},{asked.first_offset},{asked.first_ms}"
        headers = tuple(pair for pair in record.headers if pair[0] != DELAY_AGAIN)
        return Sent(
            self._source, self._now_ms, record.key, record.value, (*headers, (DELAY_AGAIN, again.encode())), AGAIN
        )

    def _dead(self, record: Record, asked: Asked, reason: str, fault: str) -> Sent | str:
        name = self._config.delay_dead_letter_topic
        target = self._target(name)
        if target is None:
            return f"there is no topic {name!r} (delay.dead.letter.topic) for what cannot be delivered: {fault}"
        if target.config.delay_enable or self._source.topic not in target.config.delay_sources:
            return f"expected {self._source.topic!r} among delay.sources of {name!r} (delay.dead.letter.topic)"
        partition = self._partition(target, record, asked)
        if partition in target.away:
            return self._again(record, asked)
        added = {
            f"{DLQ_ERRORS}topic": self._source.topic,
            f"{DLQ_ERRORS}partition": self._source.partition,
            f"{DLQ_ERRORS}offset": asked.first_offset,
            f"{DLQ_ERRORS}delivery.count": asked.attempt + 1,
            f"{DLQ_ERRORS}message": fault[:512],
            f"{DLQ_OWN}reason": reason,
            f"{DLQ_OWN}timestamp": asked.first_ms,
            f"{DLQ_OWN}last-failed-at": self._now_ms,
        }
        headers = tuple(pair for pair in record.headers if pair[0] != DELAY_AGAIN)
        to = TopicPartition(name, partition)
        return Sent(to, self._now_ms, record.key, record.value, headers + _encoded(added), DEAD)


def _encoded(added: dict[str, object]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, str(value).encode()) for name, value in added.items())
