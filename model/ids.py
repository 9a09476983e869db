"""Identifiers that must not be swapped for one another, and how they print.

Each is a plain ``int``, ``str`` or ``bytes`` at run time; with ``NewType``, a type checker refuses one in place of
another.
"""

from __future__ import annotations

import base64
import random
from typing import Final, NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""A broker's or controller's id, ``node.id`` in its configuration; 0 or more, -1 for none."""
Offset = NewType("Offset", int)
"""Position of a record in a partition; dense, from 0."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Rises by one with each new leader of a partition (KIP-101); -1 for unknown."""
PartitionEpoch = NewType("PartitionEpoch", int)
"""Rises by one with each change of a partition's leader, ISR or replicas (KIP-497)."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Given to a broker at registration, higher for each later one of any broker (KIP-631)."""
ControllerEpoch = NewType("ControllerEpoch", int)
"""The Raft term under which a controller decides."""
ProducerId = NewType("ProducerId", int)
"""Identity of an idempotent producer (KIP-98); -1 for none."""
ProducerEpoch = NewType("ProducerEpoch", int)
"""Fences older holders of a producer id; 0 to 32767, -1 for none."""
TopicId = NewType("TopicId", bytes)
"""16 random bytes that distinguish a topic from a later one of the same name (KIP-516)."""
DirectoryId = NewType("DirectoryId", bytes)
"""16 random bytes that identify a broker's log directory (KIP-858)."""

WORKER_ID_STEP: Final = 1_000
"""Between the node ids of a machine's workers: node 2 has the workers 2, 1002, 2002 …"""
NO_NODE: Final = NodeId(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_OFFSET: Final = Offset(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
ZERO_TOPIC_ID: Final = TopicId(bytes(16))
UNASSIGNED_DIRECTORY: Final = DirectoryId(bytes(16))
"""The controller does not know the replica's directory yet."""
LOST_DIRECTORY: Final = DirectoryId(bytes(15) + b"\x01")
"""The replica was in a directory that failed."""


class TopicPartition(NamedTuple):
    """A partition by its topic's name: what users name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id: what processes use among themselves, safe against topic re-creation."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{id_text(self.topic_id)}-{self.partition}"


def random_id(rng: random.Random) -> bytes:
    """Return 16 random bytes that are not a reserved id and do not print with a leading dash.

    Source: ``org.apache.kafka.common.Uuid.randomUuid``.
    """
    while True:
        found = rng.randbytes(16)
        if found[:15] != bytes(15) and not id_text(found).startswith("-"):
            return found


def id_text(raw: bytes) -> str:
    """Format an id as Kafka does: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def id_from_text(text: str) -> bytes:
    """Parse the output of :func:`id_text`. Raises ``ValueError`` for anything else."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16 or id_text(raw) != text:
        raise ValueError(f"expected an id of 22 URL-safe base64 characters, found {text!r}")
    return raw
