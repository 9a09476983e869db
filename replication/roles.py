"""Who hears when this node begins and ceases to lead the partitions of a topic.

A coordinator's state is what lies in the partitions that its node leads: it loads one when it is elected
and drops it when it has resigned. :class:`Roles` turns whatever befell a replica (newer metadata, fencing,
a failed disk, deletion, the node's stop) into these two.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.model.ids import LeaderEpoch, TopicIdPartition
from tidelog.replication.replica import Replica


class RoleListener(Protocol):
    """Called on the event loop in the midst of what changed the role: takes note, does not wait.

    For each partition the calls alternate, beginning with ``elected``, under rising epochs. A leader that
    stays leader under a newer epoch hears both. A node that is killed tells nobody.
    """

    def elected(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """This node leads the partition under this epoch; its log can be read and appended to."""

    def resigned(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """It no longer does under this one, nor ever again."""


class Roles:
    """One listener for each topic that has one; for all other topics a look costs one lookup."""

    def __init__(self) -> None:
        self._listeners: dict[str, RoleListener] = {}
        self._told: dict[TopicIdPartition, LeaderEpoch] = {}

    def watch(self, topic: str, listener: RoleListener) -> None:
        """Let ``listener`` hear of the roles of ``topic``'s partitions; before this node has any."""
        assert topic not in self._listeners, f"{topic} has its listener"
        self._listeners[topic] = listener

    def look(self, replica: Replica) -> None:
        """The role of ``replica`` may have changed."""
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
