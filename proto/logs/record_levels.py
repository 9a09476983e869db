"""The level that a record of the metadata log, a request or a format needs: the gates, all of them, in one place.

The controller refuses a request whose records the level in use does not allow, and the metadata image remembers the
highest level that a record needed, so that a downgrade below it is refused. A broker refuses a request after which an
older release could not take over its disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tidelog.model.features import GROUP_VERSION, METADATA_VERSION
from tidelog.proto.calls.api import AlterReplicaLogDirsRequest
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest
from tidelog.proto.logs.metadata_records import (
    DecoySecretRecord,
    DelegationTokenRecord,
    MetadataRecord,
    RegisterControllerRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

FIRST_LEVEL: Final = 1
RECORD_LEVELS: Final[dict[type[Any], int]] = {
    RegisterControllerRecord: 2,
    UserScramCredentialRecord: 2,
    RemoveUserScramCredentialRecord: 2,
    DecoySecretRecord: 2,
    DelegationTokenRecord: 2,
    RemoveDelegationTokenRecord: 2,
}
"""Kind of record → lowest level that may write it. Kinds that are not named belong to the first level."""


class Gate(NamedTuple):
    """What is closed below a level of a feature."""

    feature: str
    level: int

    def is_open(self, features: Mapping[str, int]) -> bool:
        return features.get(self.feature, 0) >= self.level

    def fault(self, features: Mapping[str, int]) -> str | None:
        """Say why the levels in use do not allow it."""
        if self.is_open(features):
            return None
        return (
            f"expected {self.feature} {self.level} or higher, found {features.get(self.feature, 0)}: run `tidelog "
            "features upgrade` once all nodes have been upgraded"
        )


DIRECTORIES_VOTE: Final = Gate(METADATA_VERSION, 2)
"""A controller votes by its directory, in formats that release 0.1 cannot read."""
CONSUMER_PROTOCOL: Final = Gate(GROUP_VERSION, 1)
"""Kafka's clients are told of the consumer protocol."""

REQUEST_GATES: Final[dict[type[Any], Gate]] = {
    # Release 0.1 knows no half of a move: it would begin the log anew, empty.
    AlterReplicaLogDirsRequest: Gate(METADATA_VERSION, 2),
    ConsumerGroupHeartbeatRequest: CONSUMER_PROTOCOL,
}
"""Kind of request → what it needs."""


def too_low(needed: int, features: Mapping[str, int]) -> str | None:
    """Say why the levels in use do not allow records of a ``metadata.version``. A new cluster has none yet, and may
    write what it begins with."""
    return Gate(METADATA_VERSION, needed).fault(features) if METADATA_VERSION in features else None


def level_of(records: Iterable[MetadataRecord]) -> int:
    """The level that these records need."""
    return max((RECORD_LEVELS.get(type(record), FIRST_LEVEL) for record in records), default=FIRST_LEVEL)


def kinds_above(level: int) -> list[str]:
    """The names of the kinds of records that need more than ``level``."""
    return sorted(kind.__name__ for kind, needed in RECORD_LEVELS.items() if needed > level)
