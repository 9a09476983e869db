"""A backup's table of contents, with checksums. Pure.

The file ``topics/<topic>/<partition>.batches`` contains a partition's record batches one after the other, byte for byte
as its leader had them. ``manifest.json`` is written last, so a place without one is not a backup
(:mod:`tidelog.proto.backups.place`). It contains no records and no secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.names import topic_name_fault

FORMAT: Final = 2
OLDEST: Final = 1
"""The earliest format that can be restored; it has no ``headers_sha256``."""
NAME: Final = "manifest.json"
_CHECKSUM: Final = "sha256"


class BackupError(Exception):
    """The backup cannot be made or used; the text says what to do. Nothing was changed, unless the text says so."""


class Damaged(BackupError):
    """The backup does not match its manifest."""


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """A partition's file: the offsets from ``start`` to before ``end``, in ``size`` bytes. ``headers_sha256``: of what
    the batches' CRCs do not cover, and of these CRCs; "" if unknown."""

    partition: int
    start: int
    end: int
    batches: int
    size: int
    sha256: str
    headers_sha256: str = ""


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic. ``configs``: its own settings."""

    name: str
    topic_id: str
    replication_factor: int
    configs: Mapping[str, str]
    partitions: tuple[PartitionPart, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.partitions)


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A group's committed offset."""

    topic: str
    partition: int
    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """The last batch that a sink has decided."""

    sink: str
    batch: int
    job: str


@dataclass(frozen=True, slots=True)
class QuotaPart:
    """``entity``: the three fields of :class:`tidelog.model.client_quotas.ClientQuotaEntity`."""

    entity: tuple[str | None, str | None, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module. ``producer_ids_below``: larger than any producer id in the records. ``acls``: the fields of
    :class:`tidelog.proto.calls.acl_api.AclEntry`; None without an authorizer. ``users``: only names."""

    cluster_id: str
    created_ms: int
    held_ms: int
    producer_ids_below: int
    topics: tuple[TopicPart, ...]
    groups: Mapping[str, tuple[CommittedPart, ...]]
    ledgers: tuple[LedgerPart, ...] = ()
    acls: tuple[tuple[str, ...], ...] | None = None
    quotas: tuple[QuotaPart, ...] = ()
    users: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(topic.size for topic in self.topics)

    def to_json(self) -> str:
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse a manifest. Raises :class:`BackupError`."""
        try:
            content = json.loads(text)
            found = content.pop(_CHECKSUM)
            version = content.pop("format")
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise BackupError(f"expected a backup's manifest, found damage: {error!r}") from None
        if version not in range(OLDEST, FORMAT + 1):
            raise BackupError(
                f"expected a backup of format {FORMAT} at most, found format {version!r}: use the release that made "
                "it, or a later one"
            )
        if found != _checksum({"format": version, **content}):
            raise BackupError("expected a manifest that matches its own checksum, found damage: use another copy")
        return _manifest(content)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _manifest(content: dict[str, Any]) -> Manifest:
    """Build a manifest from content that matches its checksum, and so was written here."""
    topics = tuple(
        TopicPart(**{**one, "partitions": tuple(PartitionPart(**part) for part in one["partitions"])})
        for one in content["topics"]
    )
    for topic in topics:
        if topic_name_fault(topic.name) is not None:
            raise BackupError(f"expected names of topics, found {topic.name!r}")
    acls = content["acls"]
    return Manifest(
        content["cluster_id"],
        content["created_ms"],
        content["held_ms"],
        content["producer_ids_below"],
        topics,
        {group: tuple(CommittedPart(**one) for one in found) for group, found in content["groups"].items()},
        tuple(LedgerPart(**one) for one in content["ledgers"]),
        None if acls is None else tuple(map(tuple, acls)),
        tuple(QuotaPart(tuple(one["entity"]), one["values"]) for one in content["quotas"]),
        tuple(content["users"]),
    )
