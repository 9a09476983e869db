"""The anomalies of a Kafka-like log: their names, meanings, and when they are allowed.

Names and definitions of the first block are those of Jepsen's kafka workload (``jepsen.tests.kafka``, jepsen-io/jepsen,
functions ``analysis`` and ``allowed-error-types``), in our own words; where ours are stricter or split a class in two,
the text says so. The second block is our own: a run of a simulated or killed cluster knows more than Jepsen's, since it
can read the logs at the end.

*Internal* is within one poll or one transaction, *external* is between two of the same client.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

EXAMPLES_MAX: Final = 5


class AnomalyKind(enum.Enum):
    """The anomalies of a history. The value is the name in reports."""

    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    """One offset of a partition has two values: two reads, or a read and an acknowledgement, disagree."""
    DUPLICATE = "duplicate"
    """One value was read at two offsets."""
    LOST_WRITE = "lost-write"
    """Nobody ever read an acknowledged value, though values behind it in the log were read."""
    UNSEEN = "unseen"
    """Nobody ever read an acknowledged value, nor anything behind it."""
    ABORTED_READ = "G1a"
    """A value was read although its send failed, or its transaction was aborted."""
    PRECOMMITTED_READ = "precommitted-read"
    """A transaction read its own records. In our version also: a transaction's records were read before its commit was
    requested."""
    WRITE_CYCLE = "G0"
    """Transactions with writes in a cycle: each has a value just before one of the next."""
    CIRCULAR_INFORMATION_FLOW = "G1c"
    """Transactions that read from one another in a cycle."""
    CIRCULAR_IN_REAL_TIME = "G1c-realtime"
    """A value was read by a poll that ended before the value's send began."""
    POLL_SKIP = "poll-skip"
    """Two successive polls of a consumer leave out values between them. In our version also: the first poll after a
    seek leaves out values between the position and itself."""
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    """A poll of a consumer begins at or before the end of its last one, or before the position that it sought."""
    INT_POLL_SKIP = "int-poll-skip"
    """Like poll-skip, within one poll or transaction."""
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    """Like nonmonotonic-poll, within one poll or transaction."""
    NONMONOTONIC_SEND = "nonmonotonic-send"
    """A value is at or before one that the same producer sent to the same partition earlier. Ours covers every pair of
    neighbours, whatever the outcome; Jepsen's covers the ends of successive operations."""
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    """Like nonmonotonic-send, within one transaction."""
    SEND_SKIP = "send-skip"
    """Other values lie between two successive values of a producer. Jepsen does not check this."""
    INT_SEND_SKIP = "int-send-skip"
    """Like send-skip, within one transaction."""

    MISPLACED = "misplaced"
    """An acknowledged value is at another offset than the acknowledged one."""
    VANISHED = "vanished"
    """A value that a consumer read is not in the log at the end: data below the high watermark was lost."""
    PHANTOM = "phantom"
    """A value was read that nobody sent, or that was sent to another partition."""
    HOLE = "hole"
    """The final log has no record at an offset below its end."""


ALLOWED: Final[Mapping[AnomalyKind, str]] = {
    AnomalyKind.INCONSISTENT_OFFSETS: "at offsets of a legal loss, which are given anew",
    AnomalyKind.DUPLICATE: "for producers without idempotence: a retry may write twice",
    AnomalyKind.LOST_WRITE: "below log start, after a legal loss, in compacted partitions, for acks below all",
    AnomalyKind.UNSEEN: "as lost-write, and where the partition was not read at the end",
    AnomalyKind.ABORTED_READ: "of an aborted transaction at read_uncommitted; never of a send that failed",
    AnomalyKind.PRECOMMITTED_READ: "at read_uncommitted",
    AnomalyKind.WRITE_CYCLE: "always: Kafka's transactions do not isolate writes from one another",
    AnomalyKind.CIRCULAR_INFORMATION_FLOW: "at read_uncommitted, or where only the order of writes closes the circle",
    AnomalyKind.CIRCULAR_IN_REAL_TIME: "never",
    AnomalyKind.POLL_SKIP: "across assign, seek and reset; for consumers whose rebalances are not recorded; over "
    "what was deleted, compacted or legally lost",
    AnomalyKind.NONMONOTONIC_POLL: "across assign, seek and reset; for consumers whose rebalances are not recorded",
    AnomalyKind.INT_POLL_SKIP: "as poll-skip",
    AnomalyKind.INT_NONMONOTONIC_POLL: "within a transaction as nonmonotonic-poll; never within one poll",
    AnomalyKind.NONMONOTONIC_SEND: "for producers without idempotence: a retry may overtake; after a legal loss",
    AnomalyKind.INT_NONMONOTONIC_SEND: "as nonmonotonic-send",
    AnomalyKind.SEND_SKIP: "always: producers write side by side",
    AnomalyKind.INT_SEND_SKIP: "always: transactions write side by side",
    AnomalyKind.MISPLACED: "after a legal loss, for acks below all",
    AnomalyKind.VANISHED: "below log start, after a legal loss, in compacted partitions",
    AnomalyKind.PHANTOM: "never",
    AnomalyKind.HOLE: "where transactions leave markers, in compacted partitions, after a legal loss",
}

ALWAYS_ALLOWED: Final = frozenset(kind for kind, when in ALLOWED.items() if when.startswith("always"))


class Anomaly(NamedTuple):
    """A finding. ``allowed`` is the reason why it is legal here; empty if it is not."""

    kind: AnomalyKind
    text: str
    allowed: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}" + (f" (allowed: {self.allowed})" if self.allowed else "")


def not_allowed(anomalies: Iterable[Anomaly]) -> list[str]:
    """Describe the findings that are not allowed; at most :data:`EXAMPLES_MAX` of a kind, and how many more."""
    counts: Counter[AnomalyKind] = Counter()
    lines = []
    for anomaly in anomalies:
        if anomaly.allowed:
            continue
        counts[anomaly.kind] += 1
        if counts[anomaly.kind] <= EXAMPLES_MAX:
            lines.append(str(anomaly))
    lines += [
        f"{kind.value}: and {count - EXAMPLES_MAX} more" for kind, count in counts.items() if count > EXAMPLES_MAX
    ]
    return lines
