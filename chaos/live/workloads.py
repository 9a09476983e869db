"""The workloads there are, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.chaos.live.history_file import HistoryFile
from tidelog.chaos.live.recording import Budget
from tidelog.chaos.live.transaction_work import TransactionWork
from tidelog.chaos.live.workload import AppendWork, Workload

MakeWorkload = Callable[[str, HistoryFile, int, float, Budget], Workload]
"""Bootstrap servers, history, seed, records per second of all clients together, operations that may be done."""

WORKLOADS: Final[Mapping[str, MakeWorkload]] = {"append": AppendWork, "transactions": TransactionWork}
