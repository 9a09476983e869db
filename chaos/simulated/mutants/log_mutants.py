"""Patches of the log under replication, and of the client before it. The rules are those of ``docs/replication.md``."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant
from tidelog.chaos.simulated.mutants.replication_mutants import EPOCH_OF_ANSWER_NOT_COMPARED

_PARTITION: Final = "tidelog.replication.partition.partition"
_FETCHER: Final = "tidelog.replication.following.fetcher"
_LOG: Final = "tidelog.storage.log.log"
_CHECKS: Final = "tidelog.storage.producers.append_checks"
_PRODUCERS: Final = "tidelog.storage.producers.state"
_QUEUE: Final = "tidelog.client.producer.partition_queue"

mutant: Final = partial(Mutant, scenario="producers")
"""Where most of them are seen; the others say where."""

_IDEMPOTENCE: Final = (
    mutant(
        id="sequence-check-removed",
        rule="R20",
        what="A leader does not check sequences: it writes a repeated batch again.",
        module=_LOG,
        old="            found = self._refuse_unknown(batches) or self.producers.check(batches)\n",
        new="            found = None\n",
    ),
    mutant(
        id="sequence-gap-accepted",
        rule="R20",
        what="A leader accepts a gap in the sequences: a batch overtakes an earlier one that was refused.",
        module=_PRODUCERS,
        old="    if sequence != expected:\n",
        new="    if sequence < 0:\n",
    ),
    mutant(
        id="sequence-does-not-wrap",
        rule="R20",
        what="A leader does not recognise a producer's batch past sequence 2^31 - 1: if it is resent after a lost "
        "answer, it looks like a gap instead of a duplicate.",
        module=_PRODUCERS,
        old="            into = (sequence - run.sequence) % _SEQUENCES\n",
        new="            into = sequence - run.sequence\n"
        "            if into < 0 and run is not self.runs[0]:\n"
        "                continue\n",
    ),
    mutant(
        id="producer-snapshot-not-restored",
        rule="R21",
        what="A start takes a producer snapshot's offset but not its content: earlier producers are unknown, and a "
        "retry is written again.",
        module="tidelog.storage.producers.loading",
        old="        states = ProducerStates(producers, producers_max=producers_max)\n",
        new="        states = ProducerStates(producers_max=producers_max)\n",
    ),
    mutant(
        id="producers-survive-truncation",
        rule="R21",
        what="Producer state survives the truncation of the producer's batches: a retry is acknowledged as a "
        "duplicate of records that are gone.",
        module="tidelog.storage.log.log_state",
        old="        self.producers = load_producers(\n",
        new="        load_producers(\n",
    ),
    mutant(
        id="producer-snapshot-beyond-the-end",
        rule="R21",
        what="A start believes a producer snapshot beyond the log's end: a retry of a truncated batch is acknowledged "
        "as a duplicate.",
        module="tidelog.storage.producers.loading",
        old="    while snapshots and snapshots[-1] > log_end_offset:\n"
        "        remove(file_name(snapshots.pop(), SNAPSHOT_SUFFIX))\n",
        new="",
        scenario="power-loss",
    ),
    mutant(
        id="followers-forget-producers",
        rule="R21",
        what="Followers do not record the producers of the batches that they fetch: after a failover a retry is "
        "written again.",
        module=_LOG,
        old="            if batch.producer_id >= 0:\n",
        new="            if batch.producer_id >= 0 and leader_epoch is not None:\n",
    ),
    mutant(
        id="producer-epoch-not-fenced",
        rule="R22",
        what="A batch with an older producer epoch is accepted if its sequence happens to fit.",
        module=_PRODUCERS,
        old="    if batch.producer_epoch < epoch:\n"
        "        return _old_epoch(producer_id, batch.producer_epoch, epoch)\n",
        new="",
    ),
)

_STORAGE: Final = (
    mutant(
        id="recovery-without-crc",
        rule="R23",
        what="Recovery accepts a well-formed tail without comparing its CRCs: a torn write stays in the log.",
        module="tidelog.storage.segments.batch_walk",
        old="        if not batch.crc_ok():\n"
        '            raise CorruptBatch(f"expected a batch at {position} that matches its CRC {batch.crc:#010x}, it '
        'does not")\n',
        new="",
        scenario="unclean",
    ),
    mutant(
        id="fsync-skipped",
        rule="R24",
        what="A flush ends without an fdatasync of the log: what flush.messages=1 acknowledged is only in the page "
        "cache.",
        module="tidelog.storage.disk.flush",
        old="                for file in self._files:\n                    file.fdatasync()\n",
        new="",
        scenario="power-loss",
    ),
    mutant(
        id="leader-counts-unsynced",
        rule="R24",
        what="With flush.messages=1 a leader counts its own end before that is on its disk.",
        module=_PARTITION,
        old="        return self.log.acknowledgeable_offset\n",
        new="        return self.log.log_end_offset\n",
        scenario="power-loss",
    ),
    mutant(
        id="follower-names-unsynced",
        rule="R24",
        what="With flush.messages=1 a follower names its next offset before everything below it is on its disk.",
        module=_FETCHER,
        old="            if partition.needs_flush:\n",
        new="            if partition.offline:\n",
        scenario="power-loss",
    ),
    mutant(
        id="follower-takes-corrupt-batches",
        rule="R25",
        what="A follower does not check the CRC of fetched batches: a bit that flipped on the leader's disk is "
        "replicated.",
        module=_CHECKS,
        old="            if not (checked or batch.crc_ok()) or batch.last_offset_delta < 0:\n",
        new="            if batch.last_offset_delta < 0:\n",
        scenario="unclean",
    ),
    mutant(
        id="follower-appends-anywhere",
        rule="R25",
        what="A follower accepts answers to older fetches, even of older epochs, and appends them whether or not "
        "their offsets continue from its end (four checks that cover each other).",
        module=_CHECKS,
        old="            if batch.last_offset < due and not found:\n                continue\n",
        new="",
        scenario="reassignment",
        more=(
            Edit(
                _CHECKS,
                "            elif batch.base_offset != due and (batch.base_offset > due or found or not is_empty):\n"
                "                return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, "
                'f"expected offset {due}, found {batch.base_offset}")\n',
                "",
            ),
            Edit(
                _FETCHER,
                "            if entry is not None and correlation >= entry.named_at:\n",
                "            if entry is not None:\n",
            ),
            EPOCH_OF_ANSWER_NOT_COMPARED,
        ),
    ),
)

_KNOWLEDGE: Final = (
    mutant(
        id="metadata-goes-back",
        rule="R26",
        what="A broker that asks a lagging controller loads its older image (two checks that cover each other): newer "
        "topics seem deleted, and their logs are removed.",
        module="tidelog.broker.metadata.metadata_view",
        old="        if offset < self._newest.offset:\n",
        new="        if offset < 0:\n",
        scenario="five-nodes",
        more=(
            Edit(
                "tidelog.metadata_quorum.publisher",
                "            if request.fetch_offset > self._source.commit_offset + 1:\n"
                "                return self._answer(ErrorCode.OFFSET_NOT_AVAILABLE)\n",
                "",
            ),
        ),
    ),
    mutant(
        id="client-takes-older-leader",
        rule="R26",
        what="A client replaces a partition's leader by one of an older epoch, learnt from a broker that lags.",
        module="tidelog.client.cluster.metadata",
        old="            if before is not None and found.leader_epoch < before.leader_epoch:\n"
        "                partitions.append(before)\n"
        "                continue\n",
        new="",
        scenario="five-nodes",
        more=(
            Edit(
                "tidelog.client.cluster.metadata",
                "epoch <= view.leader_epoch or epoch == NO_LEADER_EPOCH",
                "epoch == view.leader_epoch or epoch == NO_LEADER_EPOCH",
            ),
        ),
    ),
    mutant(
        id="client-resends-under-new-sequence",
        rule="R27",
        what="A producer resends a batch whose outcome is unknown under the next free sequence: the batch is written "
        "twice.",
        module=_QUEUE,
        old="        self.retry_at_ms = max(self.retry_at_ms, retry_at_ms)\n",
        new="        self.retry_at_ms = max(self.retry_at_ms, retry_at_ms)\n        batch.sequence = -1\n",
    ),
    mutant(
        id="client-retries-in-reverse",
        rule="R27",
        what="Several batches to be resent go out in reverse, numbered in that order (a broker would notice if they "
        "kept their sequences).",
        module=_QUEUE,
        old="        self.pending.extendleft(reversed([b for b in self.window if id(b) in back]))\n",
        new="        batch.sequence = -1\n        self.pending.extendleft([b for b in self.window if id(b) in back])\n",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_IDEMPOTENCE, *_STORAGE, *_KNOWLEDGE)
