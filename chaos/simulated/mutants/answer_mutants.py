"""Patches of what a restart keeps, what clients are told and what they leave behind (``docs/replication.md``)."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_BATCH: Final = "tidelog.client.producer.batch"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="restart-doubts-the-last-batch",
        rule="R23",
        what="After a kill, a start drops the last batch of a log although it is complete.",
        module="tidelog.storage.log.recovery",
        old="                due = batch.next_offset\n                if batch.is_control",
        new="                if position and position + batch.size == segment.size:\n"
        '                    return position, due, "the last batch is doubted"\n'
        "                due = batch.next_offset\n                if batch.is_control",
        scenario="replication",
    ),
    Mutant(
        id="outcome-told-twice",
        rule="R32",
        what="A batch that the client gave up on, and that is acknowledged after all, gets a second outcome.",
        module=_BATCH,
        old="        if not self.finished:\n            self.finished = True\n            self.delivery.succeed(",
        new="        if True:\n            self.finished = True\n            self.delivery.succeed(",
        scenario="producers",
    ),
    Mutant(
        id="told-of-another-partition",
        rule="R32",
        what="A record's metadata name the topic's first partition, whichever partition it went to.",
        module=_BATCH,
        old="self.delivery.succeed(self.first, self.count, self.partition, base_offset, append_time)",
        new="self.delivery.succeed(self.first, self.count, 0, base_offset, append_time)",
        scenario="replication",
    ),
    Mutant(
        id="fetches-that-are-over-still-wait",
        rule="R33",
        what="A fetch that was answered or abandoned still counts as waiting, so leaders would wake it.",
        module="tidelog.replication.serving.consumer_fetch",
        old="            owner.waiting -= 1\n",
        new="",
        scenario="replication",
        more=(
            Edit(
                "tidelog.replication.serving.consumer_fetch",
                "                part.replica.consumers.pop(part, None)\n",
                "                pass\n",
            ),
        ),
    ),
)
