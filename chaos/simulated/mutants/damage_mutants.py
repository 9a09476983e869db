"""Patches of what finds, refuses and mends damage (``docs/storage.md``, "When a disk returns other bytes").

That a leader checks the headers that it sends is held by tests, ``test_session.py`` and ``test_rotten_leader.py``: in a
run hardly ever a follower asks for a batch between the flip in its header and the scrub that finds it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_SCRUBBING: Final = "tidelog.broker.logs.log_scrubbing"
_MENDING: Final = "tidelog.broker.logs.log_mending"
_SEGMENT: Final = "tidelog.storage.segments.segment"
_LOADING: Final = "tidelog.storage.producers.loading"
_MEND: Final = "tidelog.storage.log.mend"

mutant: Final = partial(Mutant, scenario="bit-rot")

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        id="scrub-reads-nothing",
        rule="R30",
        what="The scrub never begins a pass: damage is served until a reader complains.",
        module=_SCRUBBING,
        old="        stretch = self._stretch = self._stretch or await self._begin_next()\n",
        new="        stretch = None\n",
    ),
    mutant(
        id="scrub-forgets-the-last-segments",
        rule="R30",
        what="A pass leaves a log after its first stretch: nobody looks for damage further on.",
        module=_SCRUBBING,
        old="            if examination.next_offset < stretch.target and self._queue is not None:\n",
        new="            if False:\n",
    ),
    mutant(
        id="known-damage-is-handed-out",
        rule="R30",
        what="Damage is recorded and counted, but reads of it continue as before.",
        module=_SEGMENT,
        old="        for known in self.damage:\n            if known.first_offset <= offset < known.next_offset:\n"
        "                raise CorruptBatch(",
        new="        for known in ():\n            if known.first_offset <= offset < known.next_offset:\n"
        "                raise CorruptBatch(",
        more=(
            Edit(
                _SEGMENT,
                "        for known in self.damage:\n            if known.position >= position:\n",
                "        for known in ():\n            if known.position >= position:\n",
            ),
            Edit(
                _MENDING,
                "        partition = self._partition_of(TopicIdPartition(damaged.topic_id, damaged.partition))\n",
                "        partition = None\n",
            ),
        ),
    ),
    mutant(
        id="damage-is-not-mended",
        rule="R31",
        what="Nobody asks another replica for the damaged data.",
        module=_MENDING,
        old="        partition = self._partition_of(TopicIdPartition(damaged.topic_id, damaged.partition))\n",
        new="        partition = None\n",
    ),
    mutant(
        id="mended-segment-is-short",
        rule="R31",
        what="The copy of a damaged segment ends with the last repaired range.",
        module=_MENDING,
        old="        await self._copy_up_to(mend, mend.segment.size)\n",
        new="",
    ),
    mutant(
        id="mended-range-is-left-out",
        rule="R31",
        what="Another replica's data is checked but not written: the copy lacks the range.",
        module=_MEND,
        old="        taken, due = self._judge(known, batches, self.due)\n        self._append(taken)\n",
        new="        taken, due = self._judge(known, batches, self.due)\n",
    ),
    mutant(
        id="durable-headers-believed",
        rule="R31",
        what="A start believes every durable header and looks for damage only behind it: a whole batch counts as "
        "damaged, or the log ends where a corrupt header says.",
        module="tidelog.storage.log.recovery",
        old="                if batch.next_offset >= recovery_point:\n",
        new="                if batch.base_offset >= recovery_point:\n",
    ),
    mutant(
        id="producers-taken-from-damage",
        rule="R31",
        what="A start takes producers from batch headers whether or not the batches match their CRCs.",
        module=_LOADING,
        old="    for found in examine(segment.log.get().pread, position, segment.size, expected):\n",
        new="    def walked():\n"
        "        try:\n"
        "            for at, batch in walk_headers(segment.log, position, segment.size):\n"
        "                yield PlacedBatch(at, batch)\n"
        "        except CorruptBatch:\n"
        "            return\n"
        "    for found in walked():\n",
        more=(
            Edit(
                _LOADING,
                "from tidelog.storage.segments.examination import DamagedRange, Expected, examine\n",
                "from tidelog.storage.segments.batch_walk import walk_headers\n"
                "from tidelog.storage.segments.examination import DamagedRange, Expected, PlacedBatch\n",
            ),
        ),
    ),
)
