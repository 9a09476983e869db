"""Kafka's encoding of a consumer's subscription and assignment, versions 0 to 3.

They travel inside JoinGroup and SyncGroup and are opaque to the coordinator, except for a subscription's topics. Layout
(big-endian; the version comes first; an array is a 32-bit count and its items, a string a 16-bit length and UTF-8,
bytes a 32-bit length; length -1: null)::

    subscription = version:int16 topics:[string] user_data:bytes?
                   owned:[topic:string partitions:[int32]]            from version 1
                   generation_id:int32                                from version 2
                   rack_id:string?                                    from version 3
    assignment   = version:int16 assigned:[topic:string partitions:[int32]] user_data:bytes?

A reader takes the fields that it knows from a newer version, and ignores bytes beyond. Source: Kafka's
``ConsumerProtocolSubscription.json``, ``ConsumerProtocolAssignment.json`` and ``ConsumerProtocol``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Final

from tidelog.model.assignors.assignor import NO_GENERATION, Assignment, Subscription
from tidelog.model.ids import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
"""The protocol type under which consumers join."""
VERSION_NEWEST: Final = 3
_STRING_LENGTH_MAX: Final = 0x7FFF
_INT32_MAX: Final = 0x7FFFFFFF
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_STRING_SIZE_MIN: Final = 2
_TOPIC_SIZE_MIN: Final = 6


class BadConsumerProtocol(ValueError):
    """Bytes that are not a subscription or assignment, or values that do not fit in one.

    The text says what was expected and found. Corresponds to Kafka's ``SchemaException``.
    """


def encode_subscription(subscription: Subscription, version: int = VERSION_NEWEST) -> bytes:
    """Write a subscription as Kafka's consumer does: topics and owned partitions sorted, missing user data as null.

    Values without a field in ``version`` (0 to 3) are left out. Raises :class:`BadConsumerProtocol`.
    """
    out = bytearray(_version(version))
    topics = sorted(subscription.topics)
    out += _INT32.pack(len(topics))
    for topic in topics:
        _put_string(out, topic)
    _put_user_data(out, subscription.user_data)
    if version >= 1:
        _put_partitions(out, sorted(subscription.owned))
    if version >= 2:
        out += _int32("generation_id", NO_GENERATION, subscription.generation_id)
    if version >= 3:
        if subscription.rack_id is None:
            out += _INT16.pack(-1)
        else:
            _put_string(out, subscription.rack_id)
    return bytes(out)


def decode_subscription(data: bytes | memoryview) -> Subscription:
    """Read a subscription. Raises only :class:`BadConsumerProtocol`."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple([reader.string("a topic") for _ in range(reader.count("topics", _STRING_SIZE_MIN))])
    user_data = reader.user_data()
    owned = reader.partitions() if version >= 1 else ()
    generation_id = reader.int32("the generation") if version >= 2 else NO_GENERATION
    rack_id = reader.nullable_string("the rack") if version >= 3 else None
    return Subscription(topics, user_data, owned, generation_id, rack_id or None)


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes = b"", version: int = VERSION_NEWEST
) -> bytes:
    """Write an assignment as Kafka's leader does: by topic, in the given order; missing user data as null.

    Raises :class:`BadConsumerProtocol`.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    out = bytearray(_version(version))
    _put_partitions(out, itertools.chain.from_iterable(by_topic.values()))
    _put_user_data(out, user_data)
    return bytes(out)


def decode_assignment(data: bytes | memoryview) -> Assignment:
    """Read an assignment. Raises only :class:`BadConsumerProtocol`.

    Empty bytes are an empty assignment, as in Kafka: the coordinator has them for a member that the leader left out,
    and for every member while the group has no assignment.
    """
    reader = _Reader(data)
    reader.version()
    partitions = reader.partitions()
    return Assignment(partitions, reader.user_data())


# --- Writing ------------------------------------------------------------------------------------------


def _version(version: int) -> bytes:
    if not 0 <= version <= VERSION_NEWEST:
        raise BadConsumerProtocol(f"expected a version from 0 to {VERSION_NEWEST}, found {version}")
    return _INT16.pack(version)


def _int32(what: str, least: int, number: int) -> bytes:
    if not least <= number <= _INT32_MAX:
        raise BadConsumerProtocol(f"expected {what} from {least} to {_INT32_MAX}, found {number}")
    return _INT32.pack(number)


def _put_string(out: bytearray, text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise BadConsumerProtocol(f"expected text that UTF-8 can hold, found {text!r}") from error
    if len(raw) > _STRING_LENGTH_MAX:
        raise BadConsumerProtocol(f"expected a string of at most {_STRING_LENGTH_MAX} bytes, found {len(raw)}")
    out += _INT16.pack(len(raw))
    out += raw


def _put_user_data(out: bytearray, user_data: bytes) -> None:
    out += _INT32.pack(len(user_data) or -1)
    out += user_data


def _put_partitions(out: bytearray, partitions: Iterable[TopicPartition]) -> None:
    """Write partitions, grouped by topic."""
    runs = [
        (topic, [item.partition for item in run]) for topic, run in itertools.groupby(partitions, lambda p: p.topic)
    ]
    out += _INT32.pack(len(runs))
    for topic, numbers in runs:
        _put_string(out, topic)
        out += _INT32.pack(len(numbers))
        for number in numbers:
            out += _int32("a partition", 0, number)


def _topic(partition: TopicPartition) -> str:
    return partition.topic


# --- Reading ------------------------------------------------------------------------------------------


class _Reader:
    """Reads one field after another and never beyond the end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = bytes(data)
        self._at = 0

    def version(self) -> int:
        version = self._int16("the version")
        if version < 0:
            raise BadConsumerProtocol(f"expected a version of 0 or more, found {version}")
        return version

    def _take(self, what: str, size: int) -> bytes:
        rest = len(self._data) - self._at
        if size > rest:
            raise BadConsumerProtocol(f"expected {size} bytes for {what} at {self._at}, found {rest}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _int16(self, what: str) -> int:
        number: int = _INT16.unpack(self._take(what, 2))[0]
        return number

    def int32(self, what: str) -> int:
        number: int = _INT32.unpack(self._take(what, 4))[0]
        return number

    def count(self, what: str, item_size_min: int) -> int:
        """Read an array's count; each item takes at least so many bytes."""
        count = self.int32(f"the number of {what}")
        most = (len(self._data) - self._at) // item_size_min
        if not 0 <= count <= most:
            raise BadConsumerProtocol(f"expected 0 to {most} {what} in the bytes that follow, found {count}")
        return count

    def nullable_string(self, what: str) -> str | None:
        size = self._int16(f"the length of {what}")
        if size == -1:
            return None
        if size < 0:
            raise BadConsumerProtocol(f"expected a length of {what} of -1 or more, found {size}")
        try:
            return self._take(what, size).decode()
        except UnicodeDecodeError as error:
            raise BadConsumerProtocol(f"expected UTF-8 in {what}, found {error.object!r}") from error

    def string(self, what: str) -> str:
        text = self.nullable_string(what)
        if text is None:
            raise BadConsumerProtocol(f"expected {what}, found null")
        return text

    def user_data(self) -> bytes:
        size = self.int32("the length of the user data")
        if size < -1:
            raise BadConsumerProtocol(f"expected a length of the user data of -1 or more, found {size}")
        return self._take("the user data", max(size, 0))

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count("topics with partitions", _TOPIC_SIZE_MIN)):
            topic = self.string("a topic")
            count = self.count("partitions", _INT32.size)
            numbers = struct.unpack(f">{count}i", self._take("the partitions", count * _INT32.size))
            if count and min(numbers) < 0:
                raise BadConsumerProtocol(f"expected partitions of 0 or more, found {min(numbers)} of {topic!r}")
            found += [TopicPartition(topic, number) for number in numbers]
        return tuple(found)
