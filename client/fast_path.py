"""What a producer does for each record: the shortest path into an open batch, and the handle that comes back.

``client/_fast_path.pyx`` is the compiled twin, used where it was built (``setup.py``). The plain Python that it stands
for is here, and :meth:`Taking.take_locked` of the producer.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidelog.proto.records.compiled_codec import find_compiled

VERSION = 1
"""What the Python code here expects of the compiled twin."""

B = TypeVar("B")
F = TypeVar("F")
S = TypeVar("S", bound=Callable[..., Any])

COMPILED = find_compiled("tidelog.client._fast_path", VERSION)

if TYPE_CHECKING or COMPILED is None:

    class Handle:
        """One record of a delivery. The compiled one is unknown to the cyclic collector, so whatever it refers to must
        let go of it by itself."""

        __slots__ = ("_delivery", "_index")

        def __init__(self, delivery: Any, index: int) -> None:
            self._delivery = delivery
            self._index = index

    class OpenColumns:
        """What the shortest path changes of a batch that takes records."""

        __slots__ = ("count", "delivery", "keyed_tick_ns", "keys", "room", "tick_ns", "values")
        count: int
        delivery: Any
        keys: list[bytes | None] | None
        values: list[bytes | None] | None
        room: int
        """Bytes left until it is full."""
        tick_ns: int
        """Until this time (ns since the epoch) a value alone may join as it is: its timestamp and the other columns
        need no entry."""
        keyed_tick_ns: int
        """The same for a key and a value."""

    class OpenBatches(Generic[B]):
        """What the shortest path reads of a topic."""

        __slots__ = ("open", "open_sticky", "partition_count")
        open: dict[int, B]
        """Each partition's open batch."""
        open_sticky: B | None
        """That of the partition that takes keyless records now."""
        partition_count: int

    class Taking(Generic[F]):
        """Where :meth:`take` puts records, and where it does not."""

        def __init__(self, is_locked: Callable[[], bool], now_ns: Callable[[], int], made: type[F]) -> None:
            self.plain_topics: dict[str, Any] = {}
            """:class:`OpenBatches` of topics whose keyless records may take the shortest path."""
            self.keyed_topics: dict[str, Any] = {}
            """The same for records with a key and a value."""

        def take(self, topic: str, value: Any, key: Any) -> F | None:
            """Add a record without headers, partition, timestamp and callback to an open batch, and return its future;
            ``None`` if that takes more than this path can do."""
            return self.take_locked(topic, value, key)

        def take_locked(self, topic: str, value: Any, key: Any) -> F | None:
            """The same in plain Python, under the producer's lock."""
            raise NotImplementedError

    def fast_send(slow: S) -> S:
        """A ``send`` whose shortest path needs no Python code; ``slow`` does the rest, and all of it uncompiled."""
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
