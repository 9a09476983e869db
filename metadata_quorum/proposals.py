"""The active controller's entries on their way to the log, in order.

A change of thousands of partitions is several entries. They are encoded and proposed one in each turn of the event
loop, so that heartbeats get their turns in between. Later decisions queue their entries behind them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from tidelog.metadata_quorum.raft.types import NotLeading, QuorumBusy
from tidelog.model.ids import ControllerEpoch, Offset
from tidelog.proto.logs.metadata_codec import encode_batch
from tidelog.proto.logs.metadata_records import MetadataRecord

Entry: TypeAlias = tuple[MetadataRecord, ...]
_BUSY_S: Final = 0.01
"""Time until the next attempt after the quorum had too many proposals."""


class Proposals:
    """``propose``: the quorum's; ``on_turn`` runs after each entry that had to wait for its turn; ``on_failure`` gets
    the error of an entry that did not take effect, or may not have, and the entry's epoch."""

    def __init__(
        self,
        propose: Callable[[bytes, ControllerEpoch], asyncio.Future[Offset]],
        on_turn: Callable[[], None],
        on_failure: Callable[[BaseException, ControllerEpoch], None],
    ) -> None:
        self._propose = propose
        self._on_turn = on_turn
        self._on_failure = on_failure
        self._under_way: deque[Entry] = deque()
        self._waiting: deque[tuple[Entry, ControllerEpoch, asyncio.Future[Offset]]] = deque()
        """Those that are not proposed yet; they are at the end of ``_under_way`` too."""
        self._next: asyncio.Handle | None = None
        """The next turn, as long as entries wait."""
        self.last: asyncio.Future[Offset] | None = None
        """The offset of the last entry, unless that is committed already."""

    def __len__(self) -> int:
        """Return the number of entries that are not committed yet."""
        return len(self._under_way)

    def put(self, entries: Iterable[Entry], epoch: ControllerEpoch) -> None:
        """Propose the first entry now, unless others wait or the quorum is busy, and the rest in further turns."""
        loop = asyncio.get_running_loop()
        is_first = not self._waiting
        for entry in entries:
            self._under_way.append(entry)
            future: asyncio.Future[Offset] | None = None
            if is_first:
                is_first = False
                with suppress(QuorumBusy):
                    future = self._propose(encode_batch(entry), epoch)
            if future is None:
                future = loop.create_future()
                self._waiting.append((entry, epoch, future))
            future.add_done_callback(partial(self._ended, epoch))
            self.last = future
        if self._waiting and self._next is None:
            self._next = loop.call_soon(self._turn)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        entry, epoch, future = self._waiting[0]
        try:
            self._propose(encode_batch(entry), epoch).add_done_callback(partial(_pass_on, future))
        except QuorumBusy:
            self._next = loop.call_later(_BUSY_S, self._turn)
            return
        self._waiting.popleft()
        self._on_turn()
        self._next = loop.call_soon(self._turn) if self._waiting else None

    def _ended(self, epoch: ControllerEpoch, future: asyncio.Future[Offset]) -> None:
        if future is self.last:
            self.last = None
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._on_failure(error, epoch)

    def committed(self) -> Entry:
        """Return the next entry, which is committed."""
        return self._under_way.popleft()

    def drop(self) -> None:
        """Forget all, because leadership ended. What was not proposed never takes effect."""
        waiting, self._waiting = self._waiting, deque()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._under_way.clear()
        self.last = None
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(NotLeading("expected the active controller, found one that has just resigned"))


def _pass_on(outer: asyncio.Future[Offset], inner: asyncio.Future[Offset]) -> None:
    if outer.done():
        return
    error = None if inner.cancelled() else inner.exception()
    if inner.cancelled():
        outer.cancel()
    elif error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())
