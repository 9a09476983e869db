"""Reads a backup from its first byte to its last, and says what is wrong with it. Asks no cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidelog.client.backup.copying import examine
from tidelog.client.backup.manifest import BackupError, Manifest, PartitionPart, TopicPart
from tidelog.client.backup.place import Place, key_of, read_manifest

AT_ONCE: Final = 4
"""Files that are read at a time; checksums are computed outside the interpreter's lock."""


def verify(place: Place, tell: Callable[[str], None] = lambda _: None) -> Manifest:
    """Return the manifest of a whole backup. Raises :class:`BackupError` that names everything found, and
    :class:`OSError`."""
    manifest = read_manifest(place)
    faults: list[str] = []
    done = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for topic in manifest.topics:
            faults += filter(None, pool.map(lambda part, of=topic: _fault(place, of, part), topic.partitions))
            done += topic.size
            tell(f"{topic.name}: checked; {done / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB")
    ends = {(topic.name, part.partition): part.end for topic in manifest.topics for part in topic.partitions}
    faults += [
        f"group {group}: expected offsets up to the backup's end, found {one}"
        for group, offsets in manifest.groups.items()
        for one in offsets
        if one.offset > ends.get((one.topic, one.partition), -1)
    ]
    if faults:
        raise BackupError(f"{place}: the backup is damaged, take another copy: {'; '.join(faults)}")
    return manifest


def _fault(place: Place, topic: TopicPart, part: PartitionPart) -> str:
    """Say what is wrong with a partition's file. Raises :class:`OSError`."""
    key = key_of(topic.name, part.partition)
    path = f"{place}/{key}"
    try:
        found = examine(place, key)
    except FileNotFoundError:
        return f"{path}: expected a file of {part.size} bytes, found none"
    except BackupError as error:
        return str(error)
    if found.size != part.size:
        return f"{path}: expected {part.size} bytes, found {found.size}"
    if found.sha256 != part.sha256:
        return f"{path}: expected SHA-256 {part.sha256}, found {found.sha256}"
    if (found.end, found.batches, found.undecided) != (part.end, part.batches, 0):
        return f"{path}: expected {part}, found {found}"
    return ""
