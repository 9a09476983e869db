"""The ``metadata.version`` that a record of the metadata log, or a request, needs: the gates, in one place.

The controller refuses a request whose records the level in use does not allow, and the metadata image remembers the
highest level that a record needed, so that a downgrade below it is refused. A broker refuses a request after which an
older release could not take over its disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidelog.model.features import METADATA_VERSION
from tidelog.proto.calls.api import AlterReplicaLogDirsRequest
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


REQUEST_LEVELS: Final[dict[type[Any], int]] = {
    AlterReplicaLogDirsRequest: 2,  # release 0.1 knows no half of a move: it would begin the log anew, empty
}
"""Kind of request → lowest level that may do it."""


def too_low(needed: int, features: Mapping[str, int]) -> str | None:
    """Say why the levels in use do not allow what needs a ``metadata.version``. A new cluster has none yet, and may
    write what it begins with."""
    found = features.get(METADATA_VERSION, needed)
    if needed <= found:
        return None
    return (
        f"expected {METADATA_VERSION} {needed} or higher, found {found}: run `tidelog features upgrade` once all nodes "
        "have been upgraded"
    )


def level_of(records: Iterable[MetadataRecord]) -> int:
    """The level that these records need."""
    return max((RECORD_LEVELS.get(type(record), FIRST_LEVEL) for record in records), default=FIRST_LEVEL)


def kinds_above(level: int) -> list[str]:
    """The names of the kinds of records that need more than ``level``."""
    return sorted(kind.__name__ for kind, needed in RECORD_LEVELS.items() if needed > level)
