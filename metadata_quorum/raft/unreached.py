"""Logs the controllers of ``controller.quorum.voters`` that do not answer, each once until it answers again."""

from __future__ import annotations

import logging
from typing import Final

from tidelog.model.ids import NodeId
from tidelog.proto.transport.network import Address, NotServedHere

UNREACHED_S: Final = 10.0
"""How long a controller may be silent before it is logged: nodes start one by one, and restart."""

log = logging.getLogger(__name__)


class Unreached:
    """The unreachable controllers. Bounded by the number of voters."""

    def __init__(self) -> None:
        self._since_s: dict[NodeId, float] = {}
        self._told: set[NodeId] = set()

    def answered(self, voter: NodeId) -> None:
        self._since_s.pop(voter, None)
        self._told.discard(voter)

    def failed(self, voter: NodeId, address: Address, error: Exception, now_s: float) -> None:
        """Note a failed attempt to reach ``voter``. A listener that is not a controller's is logged immediately."""
        silent_s = now_s - self._since_s.setdefault(voter, now_s)
        if voter in self._told or not (silent_s >= UNREACHED_S or isinstance(error, NotServedHere)):
            return
        self._told.add(voter)
        log.warning(
            "controller %d is not reached at %s (controller.quorum.voters): %s", voter, address, error or "no answer"
        )
