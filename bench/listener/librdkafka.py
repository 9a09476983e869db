"""librdkafka through its C interface, without a line of C: the library in the ``confluent-kafka`` package.

Records never become Python objects. Producing passes whole arrays of messages to librdkafka
(``rd_kafka_produce_batch``); consuming lets it call one of its own functions for each message
(``rd_kafka_consume_callback_queue`` with ``rd_kafka_message_timestamp``, which reads a field and returns), as a C
program's loop would call an empty one.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from contextlib import closing
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

_PRODUCER: Final = 0
_CONSUMER: Final = 1
_OK: Final = 0
_FROM_BEGINNING: Final = -2
_COPY: Final = 0x2
_PARTITION: Final = 0x8
_FULL_WAIT_S: Final = 0.002
BATCH: Final = 10_000


class LibrdkafkaMissing(RuntimeError):
    """``confluent-kafka`` is not installed, or its library cannot be loaded by itself."""


class Failed(RuntimeError):
    """librdkafka refused something; the text is librdkafka's."""


class _Message(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("length", c_size_t),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


@cache
def library() -> Any:
    """Load the library once. Raises :class:`LibrdkafkaMissing`."""
    try:
        import confluent_kafka
    except ImportError:
        raise LibrdkafkaMissing("expected the package confluent-kafka, found none: ./dev setup installs it") from None
    root = Path(confluent_kafka.__file__).resolve().parent.parent / "confluent_kafka.libs"
    found = sorted(root.glob("librdkafka*.so*"))
    if not found:
        raise LibrdkafkaMissing(f"expected librdkafka's shared library in {root.name}, found none")
    loaded: Any = ctypes.CDLL(str(found[0]))
    for name in ("conf_new", "new", "topic_new", "topic_name", "queue_new", "conf_dup", "consume_queue"):
        getattr(loaded, f"rd_kafka_{name}").restype = c_void_p
    for name in ("err2str", "version_str"):
        getattr(loaded, f"rd_kafka_{name}").restype = c_char_p
    loaded.rd_kafka_conf_set.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]
    loaded.rd_kafka_new.argtypes = [c_int, c_void_p, c_char_p, c_size_t]
    loaded.rd_kafka_topic_new.argtypes = [c_void_p, c_char_p, c_void_p]
    loaded.rd_kafka_produce_batch.argtypes = [c_void_p, c_int32, c_int, POINTER(_Message), c_int]
    loaded.rd_kafka_poll.argtypes = [c_void_p, c_int]
    loaded.rd_kafka_flush.argtypes = [c_void_p, c_int]
    loaded.rd_kafka_queue_new.argtypes = [c_void_p]
    loaded.rd_kafka_consume_start_queue.argtypes = [c_void_p, c_int32, c_int64, c_void_p]
    loaded.rd_kafka_consume_stop.argtypes = [c_void_p, c_int32]
    loaded.rd_kafka_consume_queue.argtypes = [c_void_p, c_int]
    loaded.rd_kafka_consume_callback_queue.argtypes = [c_void_p, c_int, c_void_p, c_void_p]
    loaded.rd_kafka_query_watermark_offsets.argtypes = [
        c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int
    ]  # fmt: skip
    for name in ("destroy", "topic_destroy", "queue_destroy", "message_destroy"):
        getattr(loaded, f"rd_kafka_{name}").argtypes = [c_void_p]
    return loaded


class Client:
    """A producer or consumer handle. Its configuration is librdkafka's."""

    def __init__(self, kind: int, configuration: Mapping[str, str]) -> None:
        self._library = library()
        text = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        for name, value in configuration.items():
            if self._library.rd_kafka_conf_set(conf, name.encode(), value.encode(), text, len(text)) != _OK:
                raise Failed(text.value.decode())
        self._handle = self._library.rd_kafka_new(kind, conf, text, len(text))
        if not self._handle:
            raise Failed(text.value.decode())

    def produce(self, topic: str, partitions: int, size: int, count: int, timeout_s: float) -> float:
        """Send ``count`` values of ``size`` bytes to the partitions in turn; return the rate per second until the last
        acknowledgement."""
        handle, lib = self._handle, self._library
        target = lib.rd_kafka_topic_new(handle, topic.encode(), None)
        payload = ctypes.create_string_buffer(b"." * size, size)
        batch = (_Message * BATCH)()
        for message in batch:
            message.payload = ctypes.cast(payload, c_void_p)
            message.length = size
        started = time.monotonic()
        sent = turn = 0
        try:
            while sent < count:
                if time.monotonic() - started > timeout_s:
                    raise Failed(f"expected {count} records to be taken within {timeout_s:g} s, found {sent}")
                wanted = min(BATCH, count - sent)
                taken = lib.rd_kafka_produce_batch(target, turn % partitions, _COPY, batch, wanted)
                if taken < wanted:  # the queue is full: rejected messages carry an error, and are sent again
                    time.sleep(_FULL_WAIT_S)
                sent += taken
                turn += 1
                lib.rd_kafka_poll(handle, 0)
            if lib.rd_kafka_flush(handle, round(timeout_s * 1000)) != _OK:
                raise Failed(f"expected {count} records to be acknowledged within {timeout_s:g} s")
            return count / (time.monotonic() - started)
        finally:
            lib.rd_kafka_topic_destroy(target)

    def ends(self, topic: str, partitions: int) -> list[int]:
        """Return the end of each partition."""
        low, high = c_int64(), c_int64()
        found = []
        for partition in range(partitions):
            error = self._library.rd_kafka_query_watermark_offsets(
                self._handle, topic.encode(), partition, byref(low), byref(high), 10_000
            )
            if error != _OK:
                raise Failed(self._library.rd_kafka_err2str(error).decode())
            found.append(high.value)
        return found

    def consume(self, topic: str, partitions: int, count: int, timeout_s: float) -> float:
        """Read ``count`` records from the beginning; return the rate per second, from the first to the last."""
        handle, lib = self._handle, self._library
        source = lib.rd_kafka_topic_new(handle, topic.encode(), None)
        queue = lib.rd_kafka_queue_new(handle)
        touch = ctypes.cast(lib.rd_kafka_message_timestamp, c_void_p)
        for partition in range(partitions):
            if lib.rd_kafka_consume_start_queue(source, partition, _FROM_BEGINNING, queue) != 0:
                raise Failed(f"reading {topic}-{partition} did not start")
        try:
            deadline = time.monotonic() + timeout_s
            read = 0
            while not (message := lib.rd_kafka_consume_queue(queue, 1000)):
                if time.monotonic() > deadline:
                    raise Failed(f"expected {count} records within {timeout_s:g} s, found none")
            started = time.monotonic()  # as in the C benchmark: from the first record
            lib.rd_kafka_message_destroy(message)
            while 1 + read < count:
                found = lib.rd_kafka_consume_callback_queue(queue, 1000, touch, None)
                read += max(found, 0)
                if found <= 0 and time.monotonic() > deadline:
                    raise Failed(f"expected {count} records within {timeout_s:g} s, found {1 + read}")
            return read / (time.monotonic() - started)
        finally:
            for partition in range(partitions):
                lib.rd_kafka_consume_stop(source, partition)
            lib.rd_kafka_queue_destroy(queue)
            lib.rd_kafka_topic_destroy(source)

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._handle)


def producer(configuration: Mapping[str, str]) -> closing[Client]:
    return closing(Client(_PRODUCER, configuration))


def consumer(configuration: Mapping[str, str]) -> closing[Client]:
    return closing(Client(_CONSUMER, configuration))
