"""Judges a history of a Kafka-like log: finds every anomaly, and decides which are allowed.

:mod:`~tidelog.chaos.checkers.anomalies.kinds` defines the anomalies. They cover the rules that a cluster promises:
every record that was acknowledged with acks=all is in the final log exactly once, at the acknowledged offset
(lost-write, unseen, duplicate, misplaced); with idempotence no record appears twice, whatever its outcome (duplicate);
each producer's records are in the order they were sent (nonmonotonic-send); a send that definitely failed never appears
(G1a); a record that was read stays (vanished).
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
    """Return every anomaly of a history; allowed ones are marked with the reason.

    ``final`` is the content of the logs at the end, as a read_committed consumer reads them; without it, or for a
    partition that is not in it, values that nobody read are not judged.
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
    """Describe the anomalies of a history that no circumstance allows; some examples of each kind."""
    return not_allowed(judge_history(history, final, circumstances))
