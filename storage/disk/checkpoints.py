"""Small text files that record how far a directory's or a partition's files are valid.

Kafka's formats (``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``, ``PartitionMetadataFile``,
``CleanShutdownFileHandler``): a line with the version 0, a line with the count, a line per entry. Reading raises
:class:`CorruptCheckpoint`; its text says what was expected and found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.model.ids import BrokerEpoch, TopicId, TopicPartition, id_from_text, id_text

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
"""Per partition: everything before this offset is durable."""
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEAN_OFFSETS: Final = "cleaner-offset-checkpoint"
"""Per partition: compaction has seen every key before this offset."""
SCRUB_OFFSETS: Final = "scrub-offset-checkpoint"
"""Per partition: the progress of the current scrub pass."""
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"

VERSION: Final = 0


class CorruptCheckpoint(ValueError):
    """A checkpoint file that cannot be read."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return "\n".join((str(VERSION), str(len(lines)), *lines, "")).encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for line in _lines(content):
        fields = line.split(" ")
        if len(fields) != 3:
            raise CorruptCheckpoint(f"expected 'topic partition offset', found {line!r}")
        topic, partition, offset = fields
        found[TopicPartition(topic, _number(partition, line))] = _number(offset, line)
    return found


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    lines = [f"{epoch} {start}" for epoch, start in entries]
    return "\n".join((str(VERSION), str(len(lines)), *lines, "")).encode()


def decode_epochs(content: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for line in _lines(content):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptCheckpoint(f"expected 'epoch offset', found {line!r}")
        found.append((_number(fields[0], line), _number(fields[1], line)))
    return found


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: {VERSION}\ntopic_id: {id_text(topic_id)}\n".encode()


def decode_partition_metadata(content: bytes) -> TopicId:
    fields = dict(line.split(": ", 1) for line in _text(content).splitlines() if ": " in line)
    if fields.get("version") != str(VERSION):
        raise CorruptCheckpoint(f"expected 'version: {VERSION}', found {content[:100]!r}")
    try:
        return TopicId(id_from_text(fields.get("topic_id", "")))
    except ValueError as error:
        raise CorruptCheckpoint(f"expected a topic id, found {fields.get('topic_id')!r}: {error}") from None


def encode_clean_shutdown(epoch: BrokerEpoch) -> bytes:
    return json.dumps({"version": VERSION, "brokerEpoch": epoch}).encode()


def decode_clean_shutdown(content: bytes) -> BrokerEpoch:
    try:
        fields = json.loads(content)
        epoch = fields["brokerEpoch"]
    except (ValueError, TypeError, KeyError):
        raise CorruptCheckpoint(f"expected JSON with a brokerEpoch, found {content[:100]!r}") from None
    if not isinstance(epoch, int):
        raise CorruptCheckpoint(f"expected a number as brokerEpoch, found {epoch!r}")
    return BrokerEpoch(epoch)


def _lines(content: bytes) -> list[str]:
    lines = _text(content).splitlines()
    if len(lines) < 2:
        raise CorruptCheckpoint(f"expected a version, a count and entries, found {len(lines)} lines")
    if lines[0] != str(VERSION):
        raise CorruptCheckpoint(f"expected version {VERSION}, found {lines[0]!r}")
    count = _number(lines[1], lines[1])
    if count != len(lines) - 2 or not content.endswith(b"\n"):
        raise CorruptCheckpoint(f"expected {count} entries, found {len(lines) - 2}")
    return lines[2:]


def _number(text: str, line: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CorruptCheckpoint(f"expected a number of 0 or more, found {text!r} in {line!r}")
    return int(text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CorruptCheckpoint(f"expected text, found {content[:100]!r}") from None
