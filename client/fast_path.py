"""The per-record work of a producer: the shortest path into an open batch, and the returned handle.

``client/_fast_path.pyx`` is the compiled twin, used if it was built (``setup.py``). The equivalent plain Python is
here, and in :meth:`Taking.take_locked` of the producer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidelog.proto.records.compiled_codec import find_compiled

VERSION = 1
"""The version of the compiled twin that this Python code expects."""

B = TypeVar("B")
F = TypeVar("F")
S = TypeVar("S", bound=Callable[..., Any])

COMPILED = find_compiled("tidelog.client._fast_path", VERSION)

if TYPE_CHECKING or COMPILED is None:

    class Handle:
        """One record of a delivery. The cyclic collector does not track the compiled version, so whatever it refers to
        must release it by itself."""

        __slots__ = ("_delivery", "_index")

        def __init__(self, delivery: Any, index: int) -> None:
            self._delivery = delivery
            self._index = index

    class OpenColumns:
        """The parts of an open batch that the shortest path changes."""

        __slots__ = ("count", "delivery", "keyed_tick_ns", "keys", "room", "tick_ns", "values")
        count: int
        delivery: Any
        keys: list[bytes | None] | None
        values: list[bytes | None] | None
        room: int
        """Bytes left until the batch is full."""
        tick_ns: int
        """Until this time (ns since the epoch), a value without a key may be added as it is: its timestamp and the
        other columns need no entry."""
        keyed_tick_ns: int
        """The same for a key and a value."""

    class OpenBatches(Generic[B]):
        """The parts of a topic that the shortest path reads."""

        __slots__ = ("open", "open_sticky", "partition_count")
        open: dict[int, B]
        """Each partition's open batch."""
        open_sticky: B | None
        """The open batch of the partition that takes keyless records now."""
        partition_count: int

    class Taking(ABC, Generic[F]):
        """Where :meth:`take` puts records, and where it does not."""

        def __init__(self, is_locked: Callable[[], bool], now_ns: Callable[[], int], made: type[F]) -> None:
            self.plain_topics: dict[str, Any] = {}
            """:class:`OpenBatches` of topics whose keyless records may take the shortest path."""
            self.keyed_topics: dict[str, Any] = {}
            """The same for records with a key and a value."""

        def take(self, topic: str, value: Any, key: Any) -> F | None:
            """Add a record without headers, partition, timestamp and callback to an open batch, and return its future;
            ``None`` if this path cannot do it."""
            return self.take_locked(topic, value, key)

        @abstractmethod
        def take_locked(self, topic: str, value: Any, key: Any) -> F | None:
            """The same in plain Python, under the producer's lock."""

    def fast_send(slow: S) -> S:
        """Build a ``send`` whose shortest path needs no Python code; ``slow`` does the rest, and everything if
        uncompiled."""
        return slow

else:
    Handle = COMPILED.Handle
    OpenColumns = COMPILED.OpenColumns
    fast_send = COMPILED.fast_send

    class OpenBatches(COMPILED.OpenBatches):
        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    class Taking(COMPILED.Taking):
        __class_getitem__ = classmethod(GenericAlias)
