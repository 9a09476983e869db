"""Authorizes nodes: calls to controllers, streams between nodes, and who may act as which node.

All of these need CLUSTER_ACTION on the cluster. ``node.principal.pattern`` also ties a node's id to its principal, so
that a stolen key can act for one node only, or for the workers of one machine; Kafka lets anyone with that right act as
any broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.changes import api_of
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.refusals import refuse
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NO_OFFSET, WORKER_ID_STEP, ControllerEpoch, NodeId
from tidelog.model.settings.node.access_settings import MACHINE_ID, NODE_ID
from tidelog.proto.calls.api import DescribeClusterRequest, DescribeClusterResponse
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.frames import decode_fetch_request
from tidelog.proto.transport.network import (
    BadFrame,
    CallContext,
    CallHandler,
    FrameSession,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.proto.transport.raft_messages import decode_hello
from tidelog.security.acls import AclOperation
from tidelog.security.audit import AuditEvent, AuditKind, Touched
from tidelog.security.principal import Principal

_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class NodeGuard:
    """Guards requests from other nodes. ``pattern``: see the module; ``None`` ties nothing."""

    def __init__(self, control: AccessControl, pattern: str | None) -> None:
        self._control = control
        self._pattern = pattern

    def service(self, service: Service) -> Service:
        """Restrict a controller's service to nodes."""
        streams = {kind: self.streams(kind, factory) for kind, factory in service.streams.items()}
        return replace(service, calls=self.calls(service.calls), streams=streams)

    def calls(self, calls: Calls) -> Calls:
        if self._control.authorizer is None and self._pattern is None:
            return calls
        return {request_type: self._guarded(api_of(request_type), handler) for request_type, handler in calls.items()}

    def streams(self, kind: StreamKind, factory: SessionFactory) -> SessionFactory:
        """Restrict the sessions of a stream between nodes."""
        if self._control.authorizer is None and self._pattern is None:
            return factory
        node_of = _NODE_OF[kind]

        def made(context: CallContext) -> FrameSession:
            return _NodeSession(factory(context), lambda frame: self._fault(context, kind.value, node_of(frame)))

        return made

    def _guarded(self, name: str, handler: CallHandler) -> CallHandler:
        async def serve(request: Any, context: CallContext) -> Any:
            fault = self._fault(context, name, getattr(request, "node_id", None))
            return await handler(request, context) if fault is None else refused(request, _DENIED, fault)

        return serve

    def _fault(self, context: CallContext, request: str, node_id: NodeId | None) -> str | None:
        """Return why the sender may not request this as the node that it claims to be."""
        principal = context.session.principal
        access = self._control.of(context, request)
        if access is not None and not access.cluster(AclOperation.CLUSTER_ACTION):
            return f"expected a node's principal (super.users), found {principal}"
        if self._pattern is None or node_id is None:
            return None
        expected = node_principal(self._pattern, node_id)
        if principal == expected:
            return None
        fault = f"expected {expected} to speak as node {node_id} (node.principal.pattern), found {principal}"
        if self._control.audit is not None:
            who = self._control.who(context)
            touched = (Touched("node", str(node_id)),)
            event = AuditEvent(AuditKind.DENIED, *who, context.listener, False, request, "cluster_action", touched)
            self._control.audit.note(event, lambda: fault)
        return fault


def node_principal(pattern: str, node_id: int) -> Principal:
    """Return a node's principal. Raises ``ValueError`` for an invalid pattern."""
    machine = str(node_id % WORKER_ID_STEP)
    return Principal.parse(pattern.replace(NODE_ID, str(node_id)).replace(MACHINE_ID, machine))


def refused(request: Request[Any], error: ErrorCode, text: str) -> Any:
    """Return the answer to a node's controller request that refuses all of it."""
    is_description = isinstance(request, DescribeClusterRequest)
    return cluster_refused(request, error, text) if is_description else refuse(request, error, text)


def cluster_refused(_: object, error: ErrorCode, text: str) -> DescribeClusterResponse:
    """Return an answer to DescribeCluster that reveals nothing."""
    return DescribeClusterResponse("", NO_NODE, ControllerEpoch(-1), NO_OFFSET, (), (), (), error, text)


_NODE_OF: Final[dict[StreamKind, Callable[[memoryview], NodeId]]] = {
    StreamKind.REPLICA_FETCH: lambda frame: decode_fetch_request(frame)[1].replica_id,
    StreamKind.RAFT: lambda frame: decode_hello(frame).node_id,
}
"""Reads the sending node from the first frame of a stream. Afterwards, a session accepts no other node."""


class _NodeSession:
    """A session whose first frame is checked."""

    def __init__(self, inner: FrameSession, fault: Callable[[memoryview], str | None]) -> None:
        self._inner = inner
        self._fault = fault
        self._judged = False

    def on_frame(self, frame: memoryview) -> Any:
        if not self._judged:
            fault = self._fault(frame)
            if fault is not None:
                raise BadFrame(fault)
            self._judged = True
        return self._inner.on_frame(frame)

    def on_close(self) -> None:
        self._inner.on_close()

    def __getattr__(self, name: str) -> Any:
        """Return what a paced session has besides."""
        return getattr(self._inner, name)
