"""One group: its members, its generation and its offsets. Other modules decide when these change.

Source: ``ClassicGroup``. Members stay in the order in which they joined, so that leaders, votes and answers do not
depend on hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tidelog.groups.state.consumer_group import ConsumerGroup, ConsumerGroupState
from tidelog.groups.state.group_offsets import GroupOffsets, Population
from tidelog.groups.state.member import Member
from tidelog.groups.state.transitions import ALLOWED, Cause, GroupState, Transition
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import GroupProtocol
from tidelog.proto.logs.consumer_group_records import ConsumerKey
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_subscription
from tidelog.proto.logs.coordinator_records import NO_TIMESTAMP, GroupMetadataValue

CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers, whose subscriptions the coordinator can read."""


class Group:
    """Members join and leave through its methods; only :meth:`move` changes ``state``.

    ``protocol_type`` is None for a *simple* group, which has only offsets. ``state_since_ms`` is wall-clock time, -1
    unknown. ``subscribed_topics`` is None if it is unknown.
    """

    __slots__ = (
        "_awaiting_join",
        "_population",
        "_speakers",
        "consumer",
        "generation",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "is_consumer_stored",
        "is_unled",
        "leader",
        "leftovers",
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
        """Ids that were given out and have not come back (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        """Members that have not asked for their assignment in this generation."""
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_came = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.record_number: int | None = None
        """The latest append that holds this group's own record, -1 for a loaded one; None if there is none."""
        self.storing: int | None = None
        """The append of the leader's assignment, while it is in flight."""
        self.offsets = GroupOffsets(population)
        self.consumer: ConsumerGroup | None = None
        """Its members, if it uses the consumer protocol; then it has no others and stays Empty, except while its
        conversion is on its way to the log."""
        self.is_consumer_stored = False
        """Whether the group's record in the log, if it has one, is of the consumer protocol."""
        self.leftovers: list[ConsumerKey] = []
        """Records of the consumer protocol whose removal the log refused when the group became classic."""
        self.is_unled = False
        """Whether its record says that no leader made its assignment: it was of the consumer protocol before."""
        self._population = population
        self._awaiting_join = 0
        self._speakers: dict[str, int] = {}

    # --- State --------------------------------------------------------------------------------------

    def move(self, state: GroupState, cause: Cause, now_wall_ms: int) -> None:
        """Go to another state, by one of the transitions in :data:`~tidelog.groups.state.transitions.TRANSITIONS`."""
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
        """Whether nothing is left that anybody could miss, except perhaps the group's own record."""
        return self.is_empty and not self.pending_joins and not self.offsets

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, of either protocol, and nothing in flight could add one."""
        consumer = self.consumer
        return self.state is GroupState.EMPTY and (
            consumer is None or not (consumer.members or consumer.busy or consumer.queue)
        )

    @property
    def shown_state(self) -> GroupState | ConsumerGroupState:
        """The state that administrators see."""
        return self.state if self.consumer is None else self.consumer.state

    @property
    def has_classic_record(self) -> bool:
        return self.record_number is not None and not self.is_consumer_stored

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
        """Add a member; the first one leads."""
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
        """Remove a member; if it led, the next in order leads. The caller handles its waiters."""
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
        """Update a member's protocols and timeouts."""
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
        """Remove a pending member. Returns whether it was pending."""
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
        """Make sure that the leader is a member that has joined. Returns whether there is one."""
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
        """Return NONE if the member's claims are right. Source: ``ClassicGroup.validateMember``."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- Protocols ----------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Return whether a member with these protocols fits into the group: all members must share one of them."""
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        all_members = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._speakers.get(protocol.name, 0) == all_members for protocol in protocols
        )

    def chosen_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support; on a tie, the one that got the
        first vote."""
        all_members = len(self.members)
        candidates = frozenset(name for name, count in self._speakers.items() if count == all_members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether offsets of ``topic`` are in use. If a consumer group's subscriptions cannot be read, all
        topics are.
        Source: ``ClassicGroup.isSubscribedToTopic``."""
        if self.consumer is not None:
            return self.consumer.is_subscribed(topic)
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
        """Return the group in its record's form; a member without an assignment has an empty one."""
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
        """Load the state from a record."""
        self.forget_members()
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_since_ms = value.current_state_timestamp
        self.record_number = LOADED
        self.is_consumer_stored = False
        self.is_unled = bool(value.members) and value.leader is None
        if self.consumer is not None and not self.consumer.members:
            self.consumer = None
        for stored in value.members:
            if stored.member_id not in self.members and stored.group_instance_id not in self.static_members:
                self.add(Member.loaded(stored, value.protocol or ""))
        self.leader = value.leader if value.leader in self.members else next(iter(self.members), None)
        self.subscribed_topics = self._topics()

    def adopt(self, other: Group) -> None:
        """Take over members, generation and protocol of ``other``, which becomes this group's classic state."""
        for member in other.members.values():
            self.add(member)
        self.generation, self.protocol_type, self.protocol = other.generation, other.protocol_type, other.protocol
        self.state, self.state_since_ms = other.state, other.state_since_ms
        self.subscribed_topics = self._topics()

    def unload(self) -> None:
        """Apply a tombstone: only the offsets remain."""
        self.become_simple()
        self.record_number = None

    def become_simple(self) -> None:
        """Remove everything of the classic protocol."""
        self.forget_members()
        self.leftovers = []
        self.generation = 0
        self.protocol_type = self.protocol = None
        self.state = GroupState.EMPTY
        self.state_since_ms = NO_TIMESTAMP
        self.subscribed_topics = None
        self.is_unled = False

    def forget_members(self) -> None:
        """Drop all members and pending ones; the caller handles their waiters."""
        self._population.members -= len(self.members) + len(self.pending_joins)
        self.members.clear()
        self.static_members.clear()
        self.pending_joins.clear()
        self.pending_syncs.clear()
        self._speakers.clear()
        self._awaiting_join = 0
        self.leader = None

    def waiters(self) -> Iterator[tuple[Member, int, bool]]:
        """Yield each waiting member, its waiter, and whether it waits for a join."""
        for member in self.members.values():
            if member.join_waiter is not None:
                yield member, member.join_waiter, True
            if member.sync_waiter is not None:
                yield member, member.sync_waiter, False


LOADED: Final = -1
_CAN_REBALANCE: Final = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
