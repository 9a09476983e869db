"""Tells listeners when this node starts and stops leading a topic's partitions.

A coordinator's state is the content of the partitions that its node leads: it loads a partition when elected and drops
it after resigning. :class:`Roles` reduces everything that can happen to a replica (newer metadata, fencing, a failed
disk, deletion, the node's stop) to these two events.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.model.ids import LeaderEpoch, TopicIdPartition
from tidelog.replication.partition.replica import Replica


class RoleListener(Protocol):
    """Called on the event loop during the role change: it takes note and does not wait.

    For each partition the calls alternate, beginning with ``elected``, under rising epochs. For a leader that stays
    leader under a newer epoch, both are called. A killed node calls neither.
    """

    def elected(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """Note that this node leads the partition under this epoch; its log can be read and appended to."""

    def resigned(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """Note that this node no longer leads under this epoch, and never will again."""


class Roles:
    """At most one listener per topic; for topics without one, a check costs one lookup."""

    def __init__(self) -> None:
        self._listeners: dict[str, RoleListener] = {}
        self._told: dict[TopicIdPartition, LeaderEpoch] = {}

    def watch(self, topic: str, listener: RoleListener) -> None:
        """Notify ``listener`` about the roles of ``topic``'s partitions. Call it before this node has any."""
        assert topic not in self._listeners, f"{topic} has its listener"
        self._listeners[topic] = listener

    def look(self, replica: Replica) -> None:
        """Check ``replica`` for a role change."""
        partition = replica.partition
        listener = self._listeners.get(partition.state.topic)
        if listener is None:
            return
        epoch = None if partition.leading is None else partition.leading.epoch
        told = self._told.get(replica.key)
        if epoch == told:
            return
        if told is not None:
            del self._told[replica.key]
            listener.resigned(replica.key.partition, told)
        if epoch is not None:
            self._told[replica.key] = epoch
            listener.elected(replica.key.partition, epoch)
