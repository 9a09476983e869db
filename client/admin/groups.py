"""Admin client calls for groups and their committed offsets, under the names of Kafka's ``Admin``.

Calls about a group go to its coordinator (:mod:`tidelog.client.admin.coordinators`). A list of groups combines the
answers of all live brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, overload

from tidelog.client.admin.base import AdminBase, found_or_raise, raise_first
from tidelog.client.admin.coordinators import TRANSIENT, Asked, Deadline, Said, ask_coordinators
from tidelog.client.admin.group_types import (
    CoordinatorNode,
    GroupDescription,
    GroupListing,
    GroupState,
    MemberDescription,
)
from tidelog.client.errors import (
    InvalidGroupIdError,
    TidelogError,
    exception_for,
)
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.proto.calls.consumer_group_api import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tidelog.proto.calls.group_api import (
    NO_GENERATION,
    NO_MEMBER,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupMember,
    GroupPartition,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment, decode_subscription

R = TypeVar("R", bound=Response)
V = TypeVar("V")

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
REMOVED_BY_ADMIN: Final = "removed by an administrator"

_MEANINGS: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.NON_EMPTY_GROUP: "expected a group without members; stop its consumers first",
    ErrorCode.UNKNOWN_MEMBER_ID: "expected a group without members; stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group's members are subscribed to it; stop its consumers first",
}
"""Texts for errors without one from the broker, worded for an administrator."""


class GroupAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for groups."""

    async def list_groups(
        self,
        *,
        states: Iterable[GroupState | str] = (),
        types: Iterable[str] = (),
        protocol_types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Return the cluster's groups by name; if given, only those with these states, types ("classic") and protocol
        types. Raises ``ValueError`` for an unknown state (KIP-518, KIP-848)."""
        request = ListGroupsRequest(tuple(_state(state).value for state in states), tuple(types))
        wanted = frozenset(protocol_types)
        found: dict[str, GroupListing] = {}
        for answer in (await self._ask_every_broker(request, timeout)).values():
            for group in answer.groups:
                if not wanted or group.protocol_type in wanted:
                    found[group.group_id] = GroupListing(
                        group.group_id, group.protocol_type, GroupState.of(group.state), group.group_type
                    )
        return sorted(found.values(), key=lambda listing: listing.group_id)

    async def list_consumer_groups(
        self,
        *,
        states: Iterable[GroupState | str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Call :meth:`list_groups` for groups of consumers, and for groups that have only committed offsets."""
        protocol_types = (CONSUMER_PROTOCOL_TYPE, "")
        return await self.list_groups(states=states, types=types, protocol_types=protocol_types, timeout=timeout)

    async def describe_classic_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Return state, coordinator and members of groups of any protocol type. Raises ``GroupIdNotFoundError``."""
        return await self._of_groups(group_ids, DescribeGroupsRequest, _descriptions, timeout)

    async def describe_consumer_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Return state, coordinator, members and their assignments, for groups of either protocol.

        Raises ``GroupIdNotFoundError``, and ``InvalidGroupIdError`` for a group whose members are not consumers.
        """
        classic = await self._outcomes(group_ids, DescribeGroupsRequest, _descriptions_if_classic, timeout)
        outcomes = {group: one for group, one in classic.items() if one is not None}
        others = [group for group, one in classic.items() if one is None]
        if others:
            newer = await self._outcomes(others, ConsumerGroupDescribeRequest, _consumer_descriptions, timeout)
            outcomes.update(newer)
        found = found_or_raise(outcomes)
        foreign: dict[str, TidelogError] = {
            group: InvalidGroupIdError(f"{group}: expected a group of consumers, found one of {one.protocol_type!r}")
            for group, one in found.items()
            if one.protocol_type not in (CONSUMER_PROTOCOL_TYPE, "")
        }
        if foreign:
            raise_first(foreign)
        return found

    async def delete_consumer_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups with their committed offsets. If one cannot be deleted, the others still are.

        Raises ``NonEmptyGroupError`` and ``GroupIdNotFoundError``.
        """
        await self._of_groups(group_ids, DeleteGroupsRequest, _deletions, timeout)

    @overload
    async def list_consumer_group_offsets(
        self,
        groups: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    async def list_consumer_group_offsets(
        self,
        groups: Mapping[str, Iterable[TopicPartition] | None],
        partitions: None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    async def list_consumer_group_offsets(
        self,
        groups: str | Mapping[str, Iterable[TopicPartition] | None],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return a group's committed offsets for these or all partitions. For several groups, pass a mapping of each to
        its partitions (``None``: all). The answer omits partitions without a committed offset.

        With ``require_stable``, wait for transactions that commit offsets to end (KIP-447).
        """
        wanted = {groups: partitions} if isinstance(groups, str) else groups
        asked = {
            group: OffsetFetchGroup(group, (), True)
            if some is None
            else OffsetFetchGroup(group, tuple(GroupPartition(*at) for at in some))
            for group, some in wanted.items()
        }
        found = await self._of_groups(
            asked,
            lambda names: OffsetFetchRequest(tuple(asked[name] for name in names), require_stable),
            _committed,
            timeout,
        )
        return found[groups] if isinstance(groups, str) else found

    async def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for a group that has no members.

        Raises ``UnknownMemberIdError`` if it has members, ``UnknownTopicOrPartitionError``,
        ``OffsetMetadataTooLargeError``, and ``ValueError`` for a negative offset.
        """
        items = tuple(_commit_item(at, offset) for at, offset in offsets.items())
        if not items:
            return
        request = OffsetCommitRequest(group_id, NO_GENERATION, NO_MEMBER, None, items, self._link)
        results = await self._of_group(group_id, request, _commits, timeout)
        self._raise_failed(group_id, ((f"{r.topic}-{r.partition}", r.error, r.error_message) for r in results))

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete a group's committed offsets for these partitions (KIP-496).

        Raises ``GroupSubscribedToTopicError``, ``GroupIdNotFoundError``, ``UnknownTopicOrPartitionError``.
        """
        items = tuple(GroupPartition(*at) for at in partitions)
        if not items:
            return
        results = await self._of_group(group_id, OffsetDeleteRequest(group_id, items), _forgotten, timeout)
        self._raise_failed(group_id, ((f"{r.topic}-{r.partition}", r.error, "") for r in results))

    async def remove_members_from_consumer_group(
        self,
        group_id: str,
        group_instance_ids: Iterable[str] | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Remove static members by their ``group_instance_id``, or with ``None`` all members (KIP-345).

        A running member joins again as soon as it learns of its removal. Raises ``UnknownMemberIdError`` for an
        instance that is not a member, ``GroupIdNotFoundError``.
        """
        why = f"{REMOVED_BY_ADMIN}: {reason}" if reason else REMOVED_BY_ADMIN
        if group_instance_ids is not None:
            leaving = [LeavingMember(NO_MEMBER, name, why) for name in dict.fromkeys(group_instance_ids)]
        else:
            described = (await self.describe_classic_groups([group_id], timeout=timeout))[group_id]
            leaving = [LeavingMember(m.member_id, m.group_instance_id, why) for m in described.members]
        if not leaving:
            return
        results = await self._of_group(group_id, LeaveGroupRequest(group_id, tuple(leaving)), _departures, timeout)
        gone = ErrorCode.UNKNOWN_MEMBER_ID
        self._raise_failed(
            group_id,
            (
                (r.group_instance_id or r.member_id, r.error, "the member does not exist" if r.error is gone else "")
                for r in results
            ),
        )

    # --- inside ---------------------------------------------------------------------------------------

    async def _of_groups(
        self,
        group_ids: Iterable[str],
        request: Callable[[tuple[str, ...]], Request[R]],
        read: Callable[[R, Asked], Mapping[str, Said[V]]],
        timeout: float | None,
    ) -> dict[str, V]:
        """Ask the coordinators of groups. Raises the first failure; see :func:`raise_first`."""
        outcomes = await self._outcomes(group_ids, request, read, timeout)
        return found_or_raise(outcomes)

    async def _outcomes(
        self,
        group_ids: Iterable[str],
        request: Callable[[tuple[str, ...]], Request[R]],
        read: Callable[[R, Asked], Mapping[str, Said[V]]],
        timeout: float | None,
    ) -> dict[str, V | TidelogError]:
        self._check()
        if isinstance(group_ids, str):
            raise TypeError(f"expected a list of group ids, found the string {group_ids!r}")
        deadline = Deadline(self._deadline(timeout), self._config.request_timeout_ms)
        return await ask_coordinators(self._cluster, group_ids, request, read, deadline)

    async def _of_group(
        self,
        group_id: str,
        request: Request[R],
        read: Callable[[R], Said[V]],
        timeout: float | None,
    ) -> V:
        found = await self._of_groups(
            [group_id], lambda _: request, lambda answer, _: {group_id: read(answer)}, timeout
        )
        return found[group_id]

    @staticmethod
    def _raise_failed(group_id: str, results: Iterable[tuple[str, ErrorCode, str]]) -> None:
        failed = {
            name: exception_for(error, f"{group_id}: {name}: {_meaning(error, message)}")
            for name, error, message in results
            if error is not ErrorCode.NONE
        }
        if failed:
            raise_first(failed)


# --- Reading answers -------------------------------------------------------------------------------------


def _descriptions(answer: DescribeGroupsResponse, asked: Asked) -> dict[str, Said[GroupDescription]]:
    return {
        g.group_id: Said(g.error, _meaning(g.error, g.error_message), _description(g, asked.coordinator))
        for g in answer.groups
    }


def _descriptions_if_classic(answer: DescribeGroupsResponse, asked: Asked) -> dict[str, Said[GroupDescription | None]]:
    """Read descriptions. None for a group of the consumer protocol: its coordinator only says which protocol it
    uses."""
    found: dict[str, Said[GroupDescription | None]] = {}
    for group, said in zip(answer.groups, _descriptions(answer, asked).values(), strict=True):
        if said.error is ErrorCode.GROUP_ID_NOT_FOUND and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            found[group.group_id] = Said(ErrorCode.NONE, "", None)
        else:
            found[group.group_id] = Said(said.error, said.message, said.value)
    return found


def _consumer_descriptions(answer: ConsumerGroupDescribeResponse, asked: Asked) -> dict[str, Said[GroupDescription]]:
    return {
        group.group_id: Said(
            group.error,
            _meaning(group.error, group.error_message),
            GroupDescription(
                group.group_id,
                CONSUMER_PROTOCOL_TYPE,
                group.assignor,
                GroupState.of(group.state),
                asked.coordinator,
                tuple(
                    MemberDescription(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        tuple(TopicPartition(part.topic, at) for part in member.assignment for at in part.partitions),
                        member.topics,
                        not member.is_classic,
                    )
                    for member in sorted(group.members, key=lambda member: member.member_id)
                ),
            ),
        )
        for group in answer.groups
    }


def _deletions(answer: DeleteGroupsResponse, asked: Asked) -> dict[str, Said[None]]:
    """Read deletions. If a group is gone after a request with an unknown outcome, that request deleted it."""
    return {
        r.group_id: Said(ErrorCode.NONE, "", None)
        if r.error is ErrorCode.GROUP_ID_NOT_FOUND and r.group_id in asked.uncertain
        else Said(r.error, _meaning(r.error, r.error_message), None)
        for r in answer.results
    }


def _committed(answer: OffsetFetchResponse, _: Asked) -> dict[str, Said[dict[TopicPartition, OffsetAndMetadata]]]:
    found: dict[str, Said[dict[TopicPartition, OffsetAndMetadata]]] = {}
    for group in answer.groups:
        error, message = group.error, group.error_message
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for one in group.offsets:
            if one.error is not ErrorCode.NONE:
                if one.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    error, message = one.error, f"{one.topic}-{one.partition}: {one.error.name}"
            elif one.offset >= 0:
                at = TopicPartition(one.topic, one.partition)
                offsets[at] = OffsetAndMetadata(one.offset, one.leader_epoch, one.metadata)
        found[group.group_id] = Said(error, _meaning(error, message), offsets)
    return found


def _commits(answer: OffsetCommitResponse) -> Said[Sequence[OffsetCommitResult]]:
    transient = next((r for r in answer.results if r.error in TRANSIENT), None)
    if transient is not None:
        return Said(transient.error, transient.error_message, ())
    return Said(ErrorCode.NONE, "", answer.results)


def _forgotten(answer: OffsetDeleteResponse) -> Said[Sequence[OffsetDeleteResult]]:
    return Said(answer.error, _meaning(answer.error, answer.error_message), answer.results)


def _departures(answer: LeaveGroupResponse) -> Said[Sequence[LeftMember]]:
    return Said(answer.error, _meaning(answer.error, answer.error_message), answer.members)


def _description(group: DescribedGroup, coordinator: CoordinatorNode) -> GroupDescription:
    consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    members = tuple(_member(member, consumers) for member in sorted(group.members, key=lambda m: m.member_id))
    state = GroupState.of(group.state)
    return GroupDescription(group.group_id, group.protocol_type, group.protocol, state, coordinator, members)


def _member(member: GroupMember, is_consumer: bool) -> MemberDescription:
    """Convert a member. No bytes mean that it has no assignment yet."""
    assignment: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] | None = None
    if is_consumer:
        try:
            assignment = tuple(sorted(decode_assignment(member.assignment).partitions)) if member.assignment else ()
        except BadConsumerProtocol:
            assignment = None
        try:
            subscription = tuple(sorted(decode_subscription(member.metadata).topics)) if member.metadata else ()
        except BadConsumerProtocol:
            subscription = None
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment, subscription
    )


def _commit_item(at: TopicPartition, offset: OffsetAndMetadata | int) -> OffsetCommitPartition:
    wanted = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if wanted.offset < 0:
        raise ValueError(f"{at}: expected an offset of 0 or more, found {wanted.offset}")
    return OffsetCommitPartition(at[0], at[1], Offset(wanted.offset), LeaderEpoch(wanted.leader_epoch), wanted.metadata)


def _state(wanted: GroupState | str) -> GroupState:
    found = GroupState.of(wanted)
    if found is GroupState.UNKNOWN:
        known = ", ".join(state.value for state in GroupState if state is not GroupState.UNKNOWN)
        raise ValueError(f"expected a state of {known}, found {str(wanted)!r}")
    return found


def _meaning(error: ErrorCode, message: str) -> str:
    return message or _MEANINGS.get(error, error.name)
