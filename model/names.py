"""Valid topic names. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
"""So that ``<topic>-<partition>`` and its ``.<id>-delete`` form fit a file name of 255 bytes."""
GROUP_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
AUDIT_TOPIC: Final = "__audit"
"""Where nodes put the audit log, with ``audit.topic.enable``."""
METADATA_LOG: Final = "__cluster_metadata"
"""Kafka's name of the quorum's log: no topic here, and never one of clients."""
INTERNAL_TOPICS: Final = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, AUDIT_TOPIC})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Say why ``name`` cannot be a topic's, or ``None`` when it can."""
    if not name:
        return "expected a topic name, found an empty one"
    if name in (".", ".."):
        return f"expected a topic name other than '.' and '..', found {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"expected a topic name of at most {TOPIC_NAME_LENGTH_MAX} characters, found {len(name)}"
    if _LEGAL.fullmatch(name) is None:
        return f"expected a topic name of ASCII letters, digits, '.', '_' and '-', found {name!r}"
    return None


def collision_key(name: str) -> str:
    """Two topics may not both exist when this is equal: metrics cannot tell ``.`` from ``_``."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Whether only the cluster itself writes to this topic."""
    return name in INTERNAL_TOPICS
