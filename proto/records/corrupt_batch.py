"""The error of every reader of record batches."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """Bytes that are not a record batch, or a batch whose content contradicts its header.

    The text says what was expected and found. It corresponds to Kafka's ``CorruptRecordException`` and
    ``InvalidRecordException`` where those come from reading, not from a broker's rules.
    """

    def __init__(self, text: str, batches: int = 0) -> None:
        """``batches``: those read before it."""
        super().__init__(text)
        self.batches = batches
