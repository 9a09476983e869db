"""Which operations a caller may do, as Kafka's answers say it: bits by the numbers of ``AclOperation``.

Without access control everybody may do everything that there is to do with a resource
(``AclEntry.supportedOperations``).
"""

from __future__ import annotations

from typing import Final

_READ: Final = 1 << 3
_WRITE: Final = 1 << 4
_CREATE: Final = 1 << 5
_DELETE: Final = 1 << 6
_ALTER: Final = 1 << 7
_DESCRIBE: Final = 1 << 8
_CLUSTER_ACTION: Final = 1 << 9
_DESCRIBE_CONFIGS: Final = 1 << 10
_ALTER_CONFIGS: Final = 1 << 11
_IDEMPOTENT_WRITE: Final = 1 << 12

TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DESCRIBE | _DELETE | _ALTER | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
CLUSTER_OPERATIONS: Final = (
    _CREATE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE | _ALTER | _DESCRIBE
)
GROUP_OPERATIONS: Final = _READ | _DESCRIBE | _DELETE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
