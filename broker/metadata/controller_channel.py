"""Calls to the active controller, wherever it is now.

The channel remembers which voter answered last. If a voter says NOT_CONTROLLER or is unreachable, the next one is
tried. Hints (:meth:`ControllerChannel.leader_is`) come from whichever part learns of an election first. Source of the
idea: Kafka's ``NodeToControllerChannelManager``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, cast

from tidelog.metadata_quorum.raft.unreached import Unreached
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.calls.api import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    IncrementalAlterConfigsResponse,
)
from tidelog.proto.calls.forwarded import Forwarded
from tidelog.proto.calls.quota_api import AlterClientQuotasResponse
from tidelog.proto.calls.request import Change, Judged, Request, Response
from tidelog.proto.transport.network import (
    Address,
    CallContext,
    CallTimeout,
    Connection,
    ConnectionLost,
    NotServedHere,
    Service,
)

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

RETRY_PAUSE_S: Final = 0.02
"""First pause after every voter was tried once; doubles up to the maximum, with jitter."""
RETRY_PAUSE_S_MAX: Final = 0.25
TRY_TIMEOUT_S: Final = 2.0
"""How long to wait for one voter before trying the next; it may be paused or partitioned."""


class ControllerUnavailable(Exception):
    """No active controller answered in time.

    ``unknown``: some voter may have received the request, so it may yet take effect. ``code``: for the caller.
    """

    def __init__(self, message: str, *, unknown: bool, code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.code = code


def refused_by_standby(response: Response) -> bool:
    """Return whether an answer says NOT_CONTROLLER for the whole request: nothing of it took effect."""
    items: Sequence[Judged] = ()
    match response:
        case Judged():
            items = (response,)
        case CreateTopicsResponse() | DeleteTopicsResponse() | CreatePartitionsResponse():
            items = response.topics
        case IncrementalAlterConfigsResponse():
            items = response.resources
        case AlterClientQuotasResponse():
            items = response.entries
    return bool(items) and all(item.error is ErrorCode.NOT_CONTROLLER for item in items)


class ControllerChannel:
    """Sends calls to the active controller among ``voters``.

    ``local`` is the controller service of a combined node: calls to itself do not use the network.
    """

    def __init__(
        self,
        node_id: NodeId,
        voters: Mapping[NodeId, Address],
        connect: Callable[[Address], Connection],
        rng: random.Random,
        local: Service | None = None,
        try_timeout_s: float = TRY_TIMEOUT_S,
        retry_pause_s: float = RETRY_PAUSE_S,
    ) -> None:
        self._node_id = node_id
        self._voters = dict(voters)
        self._order = sorted(voters)
        self._connect = connect
        self._rng = rng
        self._local = local
        self._connections: dict[NodeId, Connection] = {}
        self._unreached = Unreached()
        self._try_timeout_s = try_timeout_s
        self._retry_pause_s = retry_pause_s
        self._leader = NO_NODE
        self._leader_epoch = -1
        self._next = rng.randrange(len(self._order))
        self._changed = asyncio.Event()
        self._elected = asyncio.Event()

    @property
    def leader(self) -> NodeId:
        """The voter believed to be the active controller, -1 if unknown."""
        return self._leader

    @property
    def known_leader(self) -> tuple[NodeId | None, int]:
        """The active controller, and the newest known epoch (-1: none yet)."""
        return (None if self._leader == NO_NODE else self._leader), self._leader_epoch

    def leader_is(self, leader: NodeId | None, epoch: int) -> None:
        """Take a hint. Hints of an older epoch are ignored; ``None`` means that the epoch has no leader yet."""
        if epoch < self._leader_epoch:
            return
        self._leader_epoch = epoch
        found = NO_NODE if leader is None or leader not in self._voters else leader
        if found != self._leader:
            self._leader = found
            if found != NO_NODE:
                self._changed.set()
                self._elected.set()

    async def call(
        self, request: Request[R], *, timeout_s: float, retry_unknown: bool = True, patient: bool = False
    ) -> R:
        """Return the active controller's answer.

        ``retry_unknown``: try the next voter even if the last one may have received the request. ``patient``: the
        request may take long; leave a voter early only once another one is known to lead. Raises
        :class:`ControllerUnavailable`.
        """
        assert not isinstance(request, Change), f"{type(request).__name__}: expected it to be forwarded"
        answer, _ = await self.call_traced(request, timeout_s=timeout_s, retry_unknown=retry_unknown, patient=patient)
        return answer

    async def forward(
        self, request: Change[R], sender: CallContext | None, *, timeout_s: float, retry_unknown: bool = True
    ) -> tuple[R, bool]:
        """Make a patient :meth:`call` for a change that ``sender`` requests; ``None`` for this node itself. Also
        returns whether an earlier try had an unknown outcome."""
        client = None
        if sender is not None:
            client = Forwarded(str(sender.session.principal), sender.host, sender.listener)
        asked = replace(request, forwarded=client)
        return await self.call_traced(asked, timeout_s=timeout_s, retry_unknown=retry_unknown, patient=True)

    async def call_traced(
        self, request: Request[R], *, timeout_s: float, retry_unknown: bool = True, patient: bool = False
    ) -> tuple[R, bool]:
        """Make a :meth:`call`; also return whether an earlier try had an unknown outcome."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause = self._retry_pause_s
        unknown = False
        tried = 0
        reason = "no voter was asked"
        while (left := deadline - loop.time()) > 0:
            target = self._choose()
            self._changed.clear()
            try:
                if patient:
                    response = await self._ask_while_leading(target, request, left)
                else:
                    response = await self._ask(target, request, min(left, self._try_timeout_s))
            except (ConnectionLost, CallTimeout) as error:
                if target == self._leader and type(error) is NotServedHere:
                    text = f"the active controller, node {target}, runs a release without {type(request).__name__}"
                    raise ControllerUnavailable(text, unknown=unknown, code=ErrorCode.UNSUPPORTED_VERSION) from None
                unknown = True
                reason = f"controller {target}: {error or type(error).__name__}"
                if self._local is None:  # otherwise this node's own controller says so
                    self._unreached.failed(target, self._voters[target], error, loop.time())
                if not retry_unknown:
                    break
            else:
                self._unreached.answered(target)
                if not refused_by_standby(response):
                    # A standby answers DescribeCluster too, and names the active controller.
                    found = response.controller_id if isinstance(response, DescribeClusterResponse) else target
                    if found != self._leader:
                        self._leader = found
                        self._elected.set()
                    return response, unknown
                reason = f"controller {target} is not the active one"
            if self._leader == target:
                self._leader = NO_NODE
            tried += 1
            if self._leader == NO_NODE and tried % len(self._order) == 0:
                wait = min(pause * (0.5 + self._rng.random()), max(0.0, deadline - loop.time()))
                pause = max(pause, min(pause * 2, RETRY_PAUSE_S_MAX))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
        raise ControllerUnavailable(f"no active controller answered within {timeout_s:g} s: {reason}", unknown=unknown)

    def connection(self, voter: NodeId) -> Connection:
        """Return the connection to a voter, made on first use."""
        found = self._connections.get(voter)
        if found is None:
            found = self._connections[voter] = self._connect(self._voters[voter])
        return found

    async def ask(self, voter: NodeId, request: Request[R], timeout_s: float) -> R:
        """Ask one voter, active or not. Raises ``ConnectionLost`` or ``CallTimeout``."""
        return await self._ask(voter, request, timeout_s)

    def voters(self) -> list[NodeId]:
        return list(self._order)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    def _choose(self) -> NodeId:
        if self._leader != NO_NODE:
            return self._leader
        self._next = (self._next + 1) % len(self._order)
        return self._order[self._next]

    async def _ask_while_leading(self, target: NodeId, request: Request[R], timeout_s: float) -> R:
        asking = asyncio.ensure_future(self._ask(target, request, timeout_s))
        try:
            while not asking.done():
                elected = asyncio.ensure_future(self._elected.wait())
                try:
                    await asyncio.wait((asking, elected), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    elected.cancel()
                if not asking.done() and self._leader not in (target, NO_NODE):
                    raise ConnectionLost(f"node {self._leader} was elected in the meantime")
                self._elected.clear()
            return await asking
        finally:
            asking.cancel()

    async def _ask(self, target: NodeId, request: Request[R], timeout_s: float) -> R:
        if target == self._node_id and self._local is not None:
            handler = self._local.calls[type(request)]
            try:
                async with asyncio.timeout(timeout_s):
                    return cast(R, await handler(request, CallContext("local", "local")))
            except TimeoutError:
                raise CallTimeout(f"no answer to {type(request).__name__} within {timeout_s:g} s") from None
        return await self.connection(target).call(request, timeout_s=timeout_s)
