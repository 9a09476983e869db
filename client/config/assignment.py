"""What group members tell each other through the coordinator. Pure, except for users' assignors.

Source: Kafka's ``ConsumerCoordinator`` (``metadata``, ``onLeaderElected``, ``validateCooperativeAssignment``).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client.errors import IllegalStateError
from tidelog.model.assignors import Assignor, RebalanceProtocol, Subscription
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.calls.group_api import GroupMember, GroupProtocol, JoinedMember, MemberAssignment
from tidelog.proto.logs.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A consumer's part of a join: its topics, its partitions, and the data of each of its assignors."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    user_data: tuple[tuple[str, bytes], ...]
    rack_id: str | None

    def protocols(self, generation_id: int) -> tuple[GroupProtocol, ...]:
        """Ordered by preference. ``generation_id``: the generation in which the member owned ``owned``."""
        return tuple(
            GroupProtocol(
                name,
                encode_subscription(
                    Subscription(self.topics, data, self.owned, generation_id=generation_id, rack_id=self.rack_id)
                ),
            )
            for name, data in self.user_data
        )


def rebalance_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """Return the highest protocol that all assignors support (KIP-429). Raises ``ConfigError`` if there is none."""
    common = [p for p in RebalanceProtocol if all(p in assignor.protocols for assignor in assignors)]
    if not common:
        known = "; ".join(f"{a.name}: {', '.join(p.name for p in a.protocols)}" for a in assignors)
        raise ConfigError(f"partition_assignment_strategy: expected a rebalance protocol common to all, found {known}")
    return max(common)


def subscriptions_of(members: Iterable[JoinedMember]) -> dict[str, Subscription]:
    """Return the members' subscriptions, by member id. Raises ``BadConsumerProtocol``."""
    return {
        m.member_id: dataclasses.replace(decode_subscription(m.metadata), group_instance_id=m.group_instance_id)
        for m in members
    }


def partitions_given(members: Iterable[GroupMember]) -> dict[str, int]:
    """Return how many partitions of each topic the group's members have. Raises ``BadConsumerProtocol``."""
    given = {at for m in members if m.assignment for at in decode_assignment(m.assignment).partitions}
    return dict(Counter(topic for topic, _ in given))


def divide(
    assignor: Assignor,
    protocol: RebalanceProtocol,
    partitions_of: Mapping[str, int],
    members: Mapping[str, Subscription],
) -> tuple[MemberAssignment, ...]:
    """Assign, as the group's leader. Raises the assignor's exceptions, and ``IllegalStateError`` if a cooperative one
    takes a partition from its owner and gives it away in one step."""
    parts = assignor.assign(partitions_of, members)
    if protocol is RebalanceProtocol.COOPERATIVE and assignor.name != "cooperative-sticky":
        added: set[TopicPartition] = set()
        revoked: set[TopicPartition] = set()
        for member, said in members.items():
            owned, gets = set(said.owned), set(parts[member].partitions) if member in parts else set()
            added |= gets - owned
            revoked |= owned - gets
        if moved := sorted(added & revoked):
            raise IllegalStateError(
                f"assignor {assignor.name}: expected it to leave out partitions that others own until they have given "
                f"them up (cooperative rebalance); it moved {', '.join(map(str, moved))}"
            )
    return tuple(
        MemberAssignment(member, encode_assignment(parts[member].partitions, parts[member].user_data))
        for member in sorted(parts)
    )
