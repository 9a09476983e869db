"""Judges a history of a Kafka-like log: every anomaly that it shows, and which of them are not allowed.

What the anomalies are is in :mod:`~tidelog.chaos.checkers.anomalies.kinds`. The rules that a cluster promises
are covered by them: every record that was acknowledged with acks=all is in the final log exactly once, at
the offset that was acknowledged (lost-write, unseen, duplicate, misplaced); no record stands twice with
idempotence, whatever its outcome (duplicate); each producer's records stand in the order they were sent
(nonmonotonic-send); a send that definitely failed never shows (G1a); what was read stays (vanished).
"""

from __future__ import annotations

from itertools import chain

from tidelog.chaos.checkers.anomalies.evidence import LogEvidence
from tidelog.chaos.checkers.anomalies.kinds import Anomaly, not_allowed
from tidelog.chaos.checkers.anomalies.order import poll_anomalies, send_anomalies
from tidelog.chaos.checkers.anomalies.records import record_anomalies
from tidelog.chaos.checkers.anomalies.transactions import transaction_anomalies
from tidelog.chaos.checkers.history import Circumstances, FinalLog, History

_NOTHING_SPECIAL = Circumstances()


def judge_history(
    history: History, final: FinalLog | None = None, circumstances: Circumstances = _NOTHING_SPECIAL
) -> list[Anomaly]:
    """Return every anomaly of a history, those that are allowed marked with the reason.

    ``final`` is what the logs hold when all is over, as a read_committed consumer reads them; without it,
    or for a partition that is not in it, nothing is said about what nobody read.
    """
    evidence = LogEvidence(history, final or {}, circumstances)
    return list(
        chain(
            record_anomalies(evidence),
            poll_anomalies(evidence),
            send_anomalies(evidence),
            transaction_anomalies(evidence),
        )
    )


def violations(
    history: History, final: FinalLog | None = None, circumstances: Circumstances = _NOTHING_SPECIAL
) -> list[str]:
    """Return what a history shows and no circumstance allows, in words; some examples of each kind."""
    return not_allowed(judge_history(history, final, circumstances))
