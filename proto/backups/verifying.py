"""Reads a backup, and reports what is wrong with it. Contacts no cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidelog.proto.backups.copying import Examined, examine
from tidelog.proto.backups.manifest import Damaged, Manifest, PartitionPart, TopicPart
from tidelog.proto.backups.place import Place, key_of, read_manifest

AT_ONCE: Final = 4
"""How many files to read at a time; checksums are computed without the interpreter's lock."""


def survey(place: Place) -> Manifest:
    """Return the manifest of a backup that has all of its files, each with the right length. Reads none of them. Raises
    :class:`Damaged` listing everything found, other :class:`BackupError`, and :class:`OSError`."""
    manifest = read_manifest(place)
    faults = []
    for topic in manifest.topics:
        for part in topic.partitions:
            key = key_of(topic.name, part.partition)
            size = place.size(key)
            if size != part.size:
                found = "none" if size is None else f"{size} bytes"
                faults.append(f"{place}/{key}: expected a file of {part.size} bytes, found {found}")
    ends = {(topic.name, part.partition): part.end for topic in manifest.topics for part in topic.partitions}
    faults += [
        f"group {group}: expected offsets up to the backup's end, found {one}"
        for group, offsets in manifest.groups.items()
        for one in offsets
        if one.offset > ends.get((one.topic, one.partition), -1)
    ]
    _check(place, faults)
    return manifest


def verify(place: Place, tell: Callable[[str], None] = lambda _: None) -> Manifest:
    """Read a backup from its first byte to its last. Raises the errors of :func:`survey`."""
    manifest = survey(place)
    faults: list[str] = []
    done = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for topic in manifest.topics:
            faults += filter(None, pool.map(lambda part, of=topic: _fault(place, of, part), topic.partitions))
            done += topic.size
            tell(f"{topic.name}: checked; {done / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB")
    _check(place, faults)
    return manifest


def _check(place: Place, faults: Iterable[str]) -> None:
    if text := "; ".join(faults):
        raise Damaged(f"{place}: the backup is damaged, use another copy: {text}")


def fault_of(where: str, found: Examined, part: PartitionPart) -> str:
    """Return how a file that was read differs from the manifest, or "". Pure."""
    if found.size != part.size:
        return f"{where}: expected {part.size} bytes, found {found.size}"
    if found.sha256 and found.sha256 != part.sha256:
        return f"{where}: expected SHA-256 {part.sha256}, found {found.sha256}"
    if found.headers_sha256 != part.headers_sha256 and (part.headers_sha256 or not found.sha256):
        return f"{where}: expected SHA-256 {part.headers_sha256} of all headers, found {found.headers_sha256}"
    if (found.end, found.batches, found.undecided) != (part.end, part.batches, 0):
        return f"{where}: expected {part}, found {found}"
    return ""


def _fault(place: Place, topic: TopicPart, part: PartitionPart) -> str:
    """Return what is wrong with a partition's file. Raises :class:`OSError`."""
    key = key_of(topic.name, part.partition)
    try:
        return fault_of(f"{place}/{key}", examine(place, key), part)
    except Damaged as error:
        return str(error)
