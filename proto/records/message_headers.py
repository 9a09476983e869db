"""Names of record headers that brokers and clients both use. Values are text."""

from __future__ import annotations

from typing import Final

DELIVER_AT: Final = "tidelog-deliver-at"
"""When a record of a delay topic is due, in ms since the epoch; it wins over the next one."""
DELAY_MS: Final = "tidelog-delay-ms"
"""How long after its append it is due."""
DELIVER_TO: Final = "tidelog-deliver-to"
"""The topic that it goes to."""
CANCEL: Final = "tidelog-cancel"
"""The record with this header cancels the one with this offset, of the same partition."""
EXPIRES_AT: Final = "tidelog-expires-at"
"""From when on, in ms since the epoch, nobody wants the record any more."""
DELAY_ID: Final = "tidelog-delay-id"
"""Added on delivery: topic-partition-offset of the record in the delay topic,"""
DELAY_DUE: Final = "tidelog-delay-due"
"""when it was due,"""
DELAY_TIMESTAMP: Final = "tidelog-delay-timestamp"
"""and when it was appended to the delay topic."""
DELAY_AGAIN: Final = "tidelog-delay-again"
"""Of a record that a leader appended again because its target was away: due, attempt, first offset, first append."""
DELAY_ORDERS: Final = frozenset({DELIVER_AT, DELAY_MS, DELIVER_TO, CANCEL, DELAY_AGAIN})
"""What the leaders of delay topics act on."""

DLQ_ERRORS: Final = "__dlq.errors."
"""Prefix of what a dead letter says of its origin and its error (KIP-1191)."""
DLQ_OWN: Final = "tidelog-dlq-"
"""Prefix of what is told beside."""

RETRY_OWN: Final = "tidelog-retry-"
"""Prefix of what a record says that comes again after its handler raised: its attempts so far, its origin."""

REDRIVES: Final = "tidelog-redrives"
"""How often a dead letter was moved back to its topic."""

REPLAY_ID: Final = "tidelog-replay-id"
"""Added to a copy that a replay writes: the replay's id,"""
REPLAY_ORIGIN: Final = "tidelog-replay-origin"
"""and where the record came from, topic-partition-offset."""
