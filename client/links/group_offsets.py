"""Copies groups' committed offsets from the source to the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.client.errors import TidelogError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.links.definition import LinkDefinition
from tidelog.client.links.linked import LinkAdmin
from tidelog.client.links.source import Source
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.model.names import is_delay_service

NOT_OURS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_REQUEST,
    }
)
"""A group with members here moves its offsets itself, and so does every group in a promoted topic."""
METADATA_CHARS_MAX: Final = 1_000

Committed = Mapping[TopicPartition, tuple[int, str]]


def to_commit(
    theirs: Committed, ours: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what to commit at the target: the source's offsets in partitions of the link, at most its end there.
    Pure."""
    found = {}
    for at, (offset, metadata) in theirs.items():
        if at not in ends:
            continue
        wanted = OffsetAndMetadata(min(offset, ends[at]), -1, metadata[:METADATA_CHARS_MAX])
        known = ours.get(at)
        if known is None or (known.offset, known.metadata) != (wanted.offset, wanted.metadata):
            found[at] = wanted
    return found


async def copy_offsets(
    admin: LinkAdmin, source: Source, definition: LinkDefinition, ends: Mapping[TopicPartition, int]
) -> dict[str, str]:
    """Copy once. ``ends``: where the link's partitions end at the target. Returns what went wrong, by group."""
    groups = [name for name in await source.groups() if definition.takes_group(name)]
    names = [name for name in groups if not is_delay_service(name)]  # those of leaders there mean nothing here
    theirs = await source.committed(names)
    relevant = {name: offsets for name, offsets in theirs.items() if offsets.keys() & ends.keys()}
    problems: dict[str, str] = {}
    ours = await _known(admin, relevant)
    for name, offsets in relevant.items():
        wanted = to_commit(offsets, ours.get(name, {}), ends)
        if not wanted:
            continue
        try:
            await admin.alter_consumer_group_offsets(name, wanted)
        except TidelogError as error:
            if error.code not in NOT_OURS:
                problems[name] = str(error)
    return problems


async def _known(admin: LinkAdmin, names: Iterable[str]) -> Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]:
    wanted: dict[str, None] = dict.fromkeys(names)
    return await admin.list_consumer_group_offsets(wanted) if wanted else {}
