"""One member of a group."""

from __future__ import annotations

import random
import uuid

from tidelog.proto.calls.group_api import GroupMember, GroupProtocol, JoinedMember, JoinGroupRequest
from tidelog.proto.logs.coordinator_records import MemberMetadata


class Member:
    """A member's identity, its protocols, and what it waits for. Source: ``ClassicGroupMember``.

    ``join_waiter`` and ``sync_waiter``: the waiters to answer once the group has joined or synced, if any.
    ``is_new``: it has not been through a rebalance, so it does not know its id or cannot send heartbeats.
    Timeouts in ms.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[GroupProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.join_waiter: int | None = None
        self.sync_waiter: int | None = None
        self.is_new = False

    @classmethod
    def loaded(cls, stored: MemberMetadata, protocol: str) -> Member:
        """Load the member from a record: it supports the chosen protocol."""
        rebalance_timeout_ms = stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
        return cls(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            rebalance_timeout_ms,
            stored.session_timeout,
            (GroupProtocol(protocol, stored.subscription),),
            stored.assignment,
        )

    def stored(self, protocol: str, assignment: bytes) -> MemberMetadata:
        """Return the member's part of the record."""
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata under ``protocol``, which it must support."""
        for spoken in self.protocols:
            if spoken.name == protocol:
                return spoken.metadata
        raise AssertionError(f"member {self.member_id} does not speak {protocol}")

    def vote(self, candidates: frozenset[str]) -> str:
        """Return its most preferred protocol among those that all support."""
        for spoken in self.protocols:
            if spoken.name in candidates:
                return spoken.name
        raise AssertionError(f"member {self.member_id} speaks none of {sorted(candidates)}")

    def joined(self, protocol: str) -> JoinedMember:
        """Return its description for the group's leader."""
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def described(self, protocol: str | None) -> GroupMember:
        """Return its description for administrators; with metadata only if the protocol is chosen."""
        return GroupMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            b"" if protocol is None else self.metadata(protocol),
            self.assignment,
        )

    @property
    def is_excused(self) -> bool:
        """Whether its session may expire without harm: it waits for the group, and knows its id."""
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout, or the session timeout if the request has none."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def new_member_id(prefix: str, rng: random.Random) -> str:
    """Return the client id or instance id with a random UUID. Source: ``ClassicGroup.generateMemberId``."""
    return f"{prefix}-{uuid.UUID(bytes=rng.randbytes(16), version=4)}"
