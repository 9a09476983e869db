"""The error of every reader of record batches."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """Bytes that are no record batch, or whose content denies its header.

    The text says what was expected and what was found. It stands for Kafka's ``CorruptRecordException``
    and ``InvalidRecordException`` where those come from reading, not from a broker's rules.
    """

    def __init__(self, text: str, batches: int = 0) -> None:
        """``batches``: that were read before it."""
        super().__init__(text)
        self.batches = batches
