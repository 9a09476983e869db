"""What administrators are told of groups. Source: ``GroupMetadataManager.describeGroups`` and ``listGroups``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tidelog.groups.group import Group
from tidelog.groups.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.proto.group_api import DescribedGroup, ListedGroup

CLASSIC: Final = "classic"


def describe(group_id: str, group: Group | None) -> DescribedGroup:
    """Members with what they said under the protocol, once that is settled; KIP-1043 for no such group."""
    if group is None:
        return DescribedGroup(
            group_id,
            ErrorCode.GROUP_ID_NOT_FOUND,
            GroupState.DEAD.value,
            error_message=f"expected a group, found none called {group_id!r}",
        )
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id,
        ErrorCode.NONE,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        tuple(member.described(protocol) for member in group.members.values()),
    )


def listed(groups: Collection[Group], states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
    """Those in one of ``states`` and of one of ``types``; empty: all. Case does not matter (KIP-518, KIP-848)."""
    if types and CLASSIC not in {name.lower() for name in types}:
        return []
    wanted = {name.lower() for name in states}
    return [
        ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
        for group in groups
        if not wanted or group.state.value.lower() in wanted
    ]
