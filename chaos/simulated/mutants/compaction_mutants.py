"""Patches of log compaction. Each takes away one rule that :mod:`tidelog.chaos.checkers.compaction` judges by."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_FILTER: Final = "tidelog.storage.cleaner.batch_filter"
_CLEANING: Final = "tidelog.storage.cleaner.cleaning"
_PLAN: Final = "tidelog.storage.cleaner.plan"
_COMPACTION: Final = "tidelog.storage.log.log_compaction"
_CHAIN: Final = "tidelog.storage.segments.segment_chain"

mutant: Final = partial(Mutant, scenario="compaction")

MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant(
        id="cleaner-drops-a-live-key",
        rule="latest stays",
        what="The cleaner removes a record although it is the last with its key.",
        module=_FILTER,
        old="                if offset < latest(key) or not (has_value or keeps_tombstones):\n",
        new="                if offset <= latest(key) or not (has_value or keeps_tombstones):\n",
    ),
    mutant(
        id="cleaner-takes-a-hash-for-a-key",
        rule="latest stays",
        what="The cleaner treats two keys whose hashes begin alike as one: the older key's last record is removed.",
        module="tidelog.storage.cleaner.offset_map",
        old="    return blake2b(key, digest_size=_HASH_BYTES).digest()\n",
        new="    return blake2b(key, digest_size=1).digest() + bytes(15)\n",
    ),
    mutant(
        id="cleans-above-the-high-watermark",
        rule="latest stays",
        what="The cleaner works up to the log's end: it removes a record in favour of one that is truncated later.",
        module=_COMPACTION,
        old="        stable = self.last_stable_offset(Offset(high_watermark))\n",
        new="        stable = self.log_end_offset\n",
    ),
    mutant(
        id="ignores-min-compaction-lag",
        rule="superseded only",
        what="The cleaner compacts records younger than min.compaction.lag.ms.",
        module=_PLAN,
        old="    if config.min_compaction_lag_ms > 0:\n",
        new="    if config.min_compaction_lag_ms < 0:\n",
    ),
    mutant(
        id="tombstone-goes-at-once",
        rule="tombstones",
        what="The first pass removes a tombstone: a reader in progress never learns of the deletion.",
        module=_FILTER,
        old="        keeps_tombstones = not batch.attributes & DELETE_HORIZON or self._now_ms < batch.base_timestamp\n",
        new="        keeps_tombstones = False\n",
    ),
    mutant(
        id="delete-retention-not-kept",
        rule="tombstones",
        what="The second pass removes a tombstone, whatever delete.retention.ms says.",
        module=_FILTER,
        old="        self._horizon_ms = now_ms + delete_retention_ms\n",
        new="        self._horizon_ms = now_ms\n",
    ),
    mutant(
        id="timestamps-move-with-the-horizon",
        rule="as it was",
        what="A batch stores its delete horizon in place of its base timestamp without adjusting its records' "
        "timestamp deltas: their times change (KIP-534).",
        module="tidelog.proto.records.spans",
        old="        shift = base_timestamp - delete_horizon_ms\n",
        new="        shift = 0\n",
    ),
    mutant(
        id="copy-is-not-synced",
        rule="latest stays",
        what="The cleaned copy replaces its originals before it is on disk (a power loss takes both).",
        module=_CLEANING,
        old="                file.get().fdatasync()\n",
        new="                file.get()\n",
    ),
    mutant(
        id="originals-go-before-the-copy-has-its-name",
        rule="latest stays",
        what="The originals are removed before the copy's name is durable.",
        module=_CHAIN,
        old="        self.sync_names()\n        for segment in reversed(old):\n",
        new="        for segment in reversed(old):\n",
    ),
    mutant(
        id="swap-is-not-finished",
        rule="latest stays",
        what="A start after a crash in the middle of a swap drops the copy, although its originals are already gone.",
        module="tidelog.storage.log.recovery",
        old='_UNFINISHED: Final = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX, MENDED_SUFFIX)\n',
        new='_UNFINISHED: Final = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX, MENDED_SUFFIX, SWAP_SUFFIX)\n',
    ),
    mutant(
        id="forgets-producers",
        rule="producers known",
        what="A producer's last batch is removed along with its records: after a restart its sequence is unknown, and "
        "a retry is written twice.",
        module=_FILTER,
        old="        stays = is_last or begins_epoch or self._is_last_of_producer(batch)\n",
        new="        stays = is_last or begins_epoch\n",
    ),
    mutant(
        id="clean-offset-runs-ahead",
        rule="progress",
        what="A log is marked clean up to its end, although the pass could only clean part of it.",
        module="tidelog.storage.log.cleaner",
        old="                self._logs.store_clean_offset(log, cleaning.end_offset)\n",
        new="                self._logs.store_clean_offset(log, log.log_end_offset)\n",
    ),
    mutant(
        id="cleaner-never-looks",
        rule="progress",
        what="The cleaner never finds a log that is due.",
        module=_PLAN,
        old="        return self.cleanable_bytes > 0 and (",
        new="        return self.cleanable_bytes < 0 and (",
    ),
)
