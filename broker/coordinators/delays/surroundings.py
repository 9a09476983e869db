"""What movers need of their node, and what they have done: as much of them as a node without delay topics loads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.model.ids import NodeId
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.network import Connection
from tidelog.replication.manager import ReplicaManager


class Surroundings(NamedTuple):
    """What movers need of their node."""

    node_id: NodeId
    replicas: ReplicaManager
    view: MetadataView
    connection: Callable[[NodeId], Connection | None]
    caller: Callable[[NodeId], FrameCaller | None]
    """Takes produce frames to another node; ``None`` while its address is not known."""
    calls: Calls
    """Of this node's coordinators."""
    group_partition: Callable[[str], int]
    transaction_partition: Callable[[str], int]
    create: Callable[[Iterable[str]], Awaitable[object]]
    """Makes the coordinators' topics."""


class Counts:
    """What the movers of a node have done."""

    __slots__ = ("again", "cancelled", "dead", "delivered", "failed", "late_ms", "transactions")

    def __init__(self) -> None:
        self.delivered = self.dead = self.again = self.cancelled = 0
        self.transactions = self.failed = 0
        self.late_ms = 0
        """Sum over the delivered records of how long after their due time the transaction began."""
