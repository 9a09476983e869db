"""The feature levels that metadata records, requests and formats need: all gates in one place.

The controller refuses a request if the current level does not allow its records. The metadata image remembers the
highest level that a record needed, so that the controller can refuse a downgrade below it. A broker refuses a request
if an older release could not use its disks afterwards.
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
"""Kind of record → lowest level that may write it. Other kinds belong to the first level."""


class Gate(NamedTuple):
    """A gate: something that needs a feature level."""

    feature: str
    level: int

    def is_open(self, features: Mapping[str, int]) -> bool:
        return features.get(self.feature, 0) >= self.level

    def fault(self, features: Mapping[str, int]) -> str | None:
        """Return why the current levels do not allow it, or ``None``."""
        if self.is_open(features):
            return None
        return (
            f"expected {self.feature} {self.level} or higher, found {features.get(self.feature, 0)}: run `tidelog "
            "features upgrade` once all nodes have been upgraded"
        )


DIRECTORIES_VOTE: Final = Gate(METADATA_VERSION, 2)
"""A controller votes by its directory, in formats that release 0.1 cannot read."""
CONSUMER_PROTOCOL: Final = Gate(GROUP_VERSION, 1)
"""The Kafka listener advertises the consumer protocol."""

REQUEST_GATES: Final[dict[type[Any], Gate]] = {
    # Release 0.1 does not know a half-finished move: it would start the log again, empty.
    AlterReplicaLogDirsRequest: Gate(METADATA_VERSION, 2),
    ConsumerGroupHeartbeatRequest: CONSUMER_PROTOCOL,
}
"""Kind of request → its gate."""


def too_low(needed: int, features: Mapping[str, int]) -> str | None:
    """Return why the current levels do not allow records of a ``metadata.version``, or ``None``. A new cluster has no
    level yet, and may write its first records."""
    return Gate(METADATA_VERSION, needed).fault(features) if METADATA_VERSION in features else None


def level_of(records: Iterable[MetadataRecord]) -> int:
    """Return the level that these records need."""
    return max((RECORD_LEVELS.get(type(record), FIRST_LEVEL) for record in records), default=FIRST_LEVEL)


def kinds_above(level: int) -> list[str]:
    """Return the names of the record kinds that need more than ``level``."""
    return sorted(kind.__name__ for kind, needed in RECORD_LEVELS.items() if needed > level)
