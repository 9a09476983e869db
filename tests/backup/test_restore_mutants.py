"""Mutants of how records of a backup get into a log: without the rule, the named test must fail."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

RULES = (
    bound(
        "a-restore-compares-no-headers",
        "proto.backups.verifying",
        "    if found.headers_sha256 != part.headers_sha256 and",
        "    if False and",
        "backup/test_files.py::test_crcs_and_a_hash_of_the_headers_find_any_flipped_byte",
    ),
    bound(
        "imported-records-keep-foreign-epochs",
        "replication.partition.partition",
        "            leader_epoch=leading.epoch,\n            once=",
        "            once=",
        "replication/test_fencing.py::test_imported_records_get_the_epoch_under_which_they_are_taken",
    ),
    bound(
        "followers-fetch-restored-records-from-the-disk",
        "replication.partition.partition",
        "once=bulk and not leading.followers",
        "once=bulk",
        "replication/test_fencing.py::test_only_what_no_follower_will_read_is_written_past_the_cache",
    ),
    bound(
        "restored-records-count-before-they-are-written",
        "storage.log.log_state",
        "        end = self.log_end_offset if self.writing is None else self.writing.start\n",
        "        end = self.log_end_offset\n",
        "replication/serving/test_importing.py::test_they_are_answered_and_shown_once_they_are_written",
    ),
    bound(
        "a-log-is-read-and-cut-while-a-thread-writes-to-it",
        "storage.log.log_state",
        "        if self.writing is not None:\n            self._await_write()\n",
        "",
        "storage/disk/test_flush_threads.py::test_nothing_overtakes_a_thread_that_writes",
    ),
    bound(
        "a-flush-passes-over-what-is-being-written",
        "storage.disk.flush",
        "                    self._writing.run()\n",
        "                    pass\n",
        "storage/disk/test_flush_threads.py::test_a_flush_that_begins_meanwhile_writes_first",
    ),
    bound(
        "a-full-segment-lacks-what-was-being-written",
        "storage.log.log",
        "        self._await_write()  # after a kill, no segment may begin where the one before it does not end\n",
        "",
        "storage/disk/test_flush_threads.py::test_what_fills_several_segments_is_written_to_each",
    ),
    bound(
        "a-log-that-is-given-up-is-written-to",
        "storage.log.log_state",
        "            job.end()\n        self._chain.close()\n",
        "            pass\n        self._chain.close()\n",
        "storage/disk/test_flush_threads.py::test_what_was_not_begun_when_a_log_is_given_up_is_not_written",
    ),
)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
