"""A connection's requests, in the order of their answers."""

from __future__ import annotations

from tidelog.broker.kafka.wire.outgoing import Outgoing
from tidelog.broker.kafka.wire.pending import CloseConnection, Pending, Pieces


class Slot:
    """A request's place in the order of answers: the answer, or what it waits for."""

    __slots__ = ("held", "pending", "pieces")

    def __init__(self, pending: Pending | None, held: int) -> None:
        self.pending = pending
        self.pieces: Pieces | None = None
        self.held = held

    def drop(self) -> None:
        """Release an answer that nobody will get."""
        pending, self.pending = self.pending, None
        if pending is not None and not pending.future.cancel() and not pending.future.cancelled():
            try:
                self.pieces = pending.finish(pending.future)
            except CloseConnection:
                return
        outgoing = Outgoing()
        outgoing.add_answer(self.pieces)
        outgoing.clear()
