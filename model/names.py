"""Valid topic names. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
"""Longest topic name, so that ``<topic>-<partition>`` and its ``.<id>-delete`` form fit in a 255-byte file name."""
GROUP_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
AUDIT_TOPIC: Final = "__audit"
"""The topic for the audit log, with ``audit.topic.enable``."""
METADATA_LOG: Final = "__cluster_metadata"
"""Kafka's name for the quorum's log: not a topic here, and never one of clients."""
INTERNAL_TOPICS: Final = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, AUDIT_TOPIC})
DELAY_PREFIX: Final = "__delay."
"""Prefix of the transactional ids and groups of delay topics' leaders, which nobody else may use."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return why ``name`` cannot be a topic's, or ``None`` if it can."""
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
    """Return the key on which topic names collide: metrics cannot distinguish ``.`` from ``_``."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Return whether only the cluster itself writes to this topic."""
    return name in INTERNAL_TOPICS


def is_delay_service(name: str) -> bool:
    """Whether a transactional id or a group belongs to the leaders of a delay topic."""
    return name.startswith(DELAY_PREFIX)
