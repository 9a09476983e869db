"""One group: its members, its generation and its offsets, without any decision about when what happens.

Source: ``ClassicGroup``. Members are kept in the order in which they came, so that leaders, votes and answers
do not depend on hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tidelog.groups.group_offsets import GroupOffsets, Population
from tidelog.groups.member import Member
from tidelog.groups.transitions import ALLOWED, Cause, GroupState, Transition
from tidelog.model.errors import ErrorCode
from tidelog.proto.consumer_protocol import BadConsumerProtocol, decode_subscription
from tidelog.proto.coordinator_records import NO_TIMESTAMP, GroupMetadataValue
from tidelog.proto.group_api import GroupProtocol

CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers, whose subscriptions the coordinator can read."""


class Group:
    """Members join and leave by its methods; ``state`` changes by :meth:`move` alone.

    ``protocol_type`` is None for a *simple* group, of offsets alone. ``state_since_ms`` is wall-clock time,
    -1 unknown. ``subscribed_topics`` is None where it cannot be told.
    """

    __slots__ = (
        "_awaiting_join",
        "_population",
        "_speakers",
        "generation",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "leader",
        "members",
        "new_member_came",
        "offsets",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol",
        "protocol_type",
        "record_number",
        "state",
        "state_since_ms",
        "static_members",
        "storing",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, population: Population, now_wall_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = now_wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: dict[str, None] = {}
        """Ids that were given out and not come back with (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        """Members that have not asked for their assignment in this generation."""
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_came = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.record_number: int | None = None
        """The latest append that holds this group's own record, -1 for one that was loaded; None: there is none."""
        self.storing: int | None = None
        """The append that holds the leader's assignment, while it is under way."""
        self.offsets = GroupOffsets(population)
        self._population = population
        self._awaiting_join = 0
        self._speakers: dict[str, int] = {}

    # --- State --------------------------------------------------------------------------------------

    def move(self, state: GroupState, cause: Cause, now_wall_ms: int) -> None:
        """Go to another state, by one of the ways in :data:`~tidelog.groups.transitions.TRANSITIONS`."""
        transition = Transition(self.state, state, cause)
        assert transition in ALLOWED, f"group {self.group_id}: {transition} is no transition"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_wall_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in _CAN_REBALANCE

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left that anybody could miss, but perhaps a record of its own."""
        return self.state is GroupState.EMPTY and not self.pending_joins and not self.offsets

    def begin_generation(self, now_wall_ms: int) -> None:
        """End the join phase: choose the protocol, and wait for the leader's assignment if there are members."""
        self.generation += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol = self.chosen_protocol()
            self.move(GroupState.COMPLETING_REBALANCE, Cause.JOINED, now_wall_ms)
        else:
            self.protocol = None
            self.move(GroupState.EMPTY, Cause.NOBODY_LEFT, now_wall_ms)
        self.subscribed_topics = self._topics()

    # --- Members ------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.remove_pending(member.member_id)
        self.members[member.member_id] = member
        self._population.members += 1
        self._count(member, 1)
        self._awaiting_join += member.join_waiter is not None

    def remove(self, member_id: str) -> Member:
        """Take a member out; the next in order leads if it did. Its waiters are the caller's business."""
        member = self.members.pop(member_id)
        self._population.members -= 1
        self._count(member, -1)
        self._awaiting_join -= member.join_waiter is not None
        self.pending_syncs.pop(member_id, None)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, old: Member, new_id: str) -> Member:
        """Give a static member a new id (KIP-345): the old one is fenced from now on."""
        assert old.instance_id is not None
        assert old.join_waiter is None
        assert old.sync_waiter is None
        new = Member(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        was_leader = self.leader == old.member_id
        self.remove(old.member_id)
        self.add(new)
        if was_leader:
            self.leader = new_id
        return new

    def update(self, member: Member, protocols: tuple[GroupProtocol, ...], session_ms: int, rebalance_ms: int) -> None:
        """Take what a member says anew."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.session_timeout_ms = session_ms
        member.rebalance_timeout_ms = rebalance_ms

    def set_join_waiter(self, member: Member, waiter: int | None) -> None:
        self._awaiting_join += (waiter is not None) - (member.join_waiter is not None)
        member.join_waiter = waiter

    def add_pending(self, member_id: str) -> None:
        assert member_id not in self.members
        assert member_id not in self.pending_joins
        self.pending_joins[member_id] = None
        self._population.members += 1

    def remove_pending(self, member_id: str) -> bool:
        """Whether it was pending."""
        if member_id not in self.pending_joins:
            return False
        del self.pending_joins[member_id]
        self._population.members -= 1
        return True

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    @property
    def awaiting_join(self) -> int:
        return self._awaiting_join

    @property
    def has_all_joined(self) -> bool:
        return len(self.members) == self._awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """See that the leader is one that joined; whether there is one."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader = member.member_id
                return True
        return False

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member that is who it says. Source: ``ClassicGroup.validateMember``."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- Protocols ----------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Whether a member with these can be in the group: one of them is spoken by all there are."""
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        all_members = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._speakers.get(protocol.name, 0) == all_members for protocol in protocols
        )

    def chosen_protocol(self) -> str:
        """The one that most members prefer among those that all speak; of equals the one voted for first."""
        all_members = len(self.members)
        candidates = frozenset(name for name, count in self._speakers.items() if count == all_members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def is_subscribed(self, topic: str) -> bool:
        """Whether offsets of ``topic`` are in use. Where the subscriptions of a consumer group cannot be read, all
        topics are. Source: ``ClassicGroup.isSubscribedToTopic``."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def _topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        found: set[str] = set()
        try:
            for member in self.members.values():
                found.update(decode_subscription(member.metadata(self.protocol)).topics)
        except BadConsumerProtocol:
            return None
        return frozenset(found)

    def _count(self, member: Member, by: int) -> None:
        for protocol in member.protocols:
            count = self._speakers.get(protocol.name, 0) + by
            if count:
                self._speakers[protocol.name] = count
            else:
                del self._speakers[protocol.name]

    # --- Records ------------------------------------------------------------------------------------

    def stored(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """What its record says; a member without an assignment has an empty one."""
        protocol = self.protocol
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            protocol,
            self.leader,
            self.state_since_ms,
            ()
            if protocol is None
            else tuple(
                member.stored(protocol, assignments.get(member.member_id, b"")) for member in self.members.values()
            ),
        )

    def load(self, value: GroupMetadataValue) -> None:
        """Become what a record says."""
        self.forget_members()
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_since_ms = value.current_state_timestamp
        self.record_number = LOADED
        for stored in value.members:
            if stored.member_id not in self.members and stored.group_instance_id not in self.static_members:
                self.add(Member.loaded(stored, value.protocol or ""))
        self.leader = value.leader if value.leader in self.members else next(iter(self.members), None)
        self.subscribed_topics = self._topics()

    def unload(self) -> None:
        """Become what a tombstone says: nothing but its offsets."""
        self.forget_members()
        self.generation = 0
        self.protocol_type = self.protocol = None
        self.state = GroupState.EMPTY
        self.state_since_ms = NO_TIMESTAMP
        self.subscribed_topics = None
        self.record_number = None

    def forget_members(self) -> None:
        """Drop all members and pending ones; their waiters are the caller's business."""
        self._population.members -= len(self.members) + len(self.pending_joins)
        self.members.clear()
        self.static_members.clear()
        self.pending_joins.clear()
        self.pending_syncs.clear()
        self._speakers.clear()
        self._awaiting_join = 0
        self.leader = None

    def waiters(self) -> Iterator[tuple[Member, int, bool]]:
        """Each member that waits, whom to answer, and whether it waits for joining."""
        for member in self.members.values():
            if member.join_waiter is not None:
                yield member, member.join_waiter, True
            if member.sync_waiter is not None:
                yield member, member.sync_waiter, False


LOADED: Final = -1
_CAN_REBALANCE: Final = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
