"""Mutants of messaging patterns: with a rule taken out, the test that is named beside it fails."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

_PRIORITY = "client/consumer/test_priority.py::"
_STORED = "storage/test_filtered_log.py::"
_FETCHED = "replication/serving/test_filtering.py::"
_SAME = f"{_FETCHED}test_the_server_finds_what_the_client_would"
_READ = "client/consumer/test_header_filter.py::"
_INDEX = "storage.segments.filter_index"
_LOG = "storage.log.filtered_log"
_REPLAY = "client.workers.replay"
_REPLAYED = "client/workers/test_replay.py::"
_FETCH = "replication.serving.consumer_fetch"
MUTANTS = (
    bound(
        "a-member-is-named-when-its-group-may-have-forgotten-it",
        "client.workers.asynchronous",
        "letters.offsets, member)\n",
        "letters.offsets, consumer.group_metadata())\n",
        "client/workers/test_lost_membership.py::test_a_member_that_is_none_any_more_commits_nothing",
    ),
    bound(
        "handlers-get-what-was-aborted",
        "client.workers.plan",
        'level = {} if self.retry.through is None else {"isolation_level": "read_committed"}\n',
        "level: dict[str, str] = {}\n",
        "client/workers/test_retry_later.py::"
        "test_what_fails_comes_again_later_and_ends_as_a_dead_letter_of_its_first_place",
    ),
    bound(
        "the-heaviest-level-first",
        "client.fetching.turns",
        "if ready is not None and level.credit > 0:",
        "if ready is not None:",
        f"{_PRIORITY}test_no_level_with_data_waits_longer_than_one_turn_of_each_other",
    ),
    bound(
        "a-rebalance-gives-the-turn-to-the-heaviest",
        "client.fetching.turns",
        "if level.weight == turn), 0)\n",
        "if level.weight == turn and level.credit < 0), 0)\n",
        f"{_PRIORITY}test_levels_with_a_backlog_share_by_their_weights",
    ),
    bound(
        "records-cost-their-level-nothing",
        "client.consumer.core",
        "                    level.credit -= len(taken)\n",
        "",
        f"{_PRIORITY}test_a_group_reads_by_weight_and_loses_nothing_in_a_rebalance",
    ),
    bound(
        "markers-are-left-out",
        "proto.records.header_filter",
        "    if batch.is_control:\n        return ALL\n",
        "    if batch.is_control:\n        return 0\n",
        _SAME,
    ),
    bound(
        "records-without-the-header-have-no-bit",
        "proto.records.header_filter",
        "mask |= _WITHOUT if value is None else",
        "mask |= 0 if value is None else",
        f"{_FETCHED}test_masks_of_what_is_there_and_what_is_wanted_meet",
    ),
    bound(
        "small-batches-of-a-block-are-forgotten",
        _INDEX,
        "        self._mask |= mask\n",
        "        self._mask = mask\n",
        f"{_STORED}test_what_is_not_wanted_is_skipped",
    ),
    bound(
        "damaged-pages-are-believed",
        _INDEX,
        "            or crc32(memoryview(raw)[4:], self._base_crc) != found[0]\n",
        "",
        f"{_STORED}test_a_damaged_index_is_not_believed_and_made_again",
    ),
    bound(
        "pages-of-another-segment-are-believed",
        _INDEX,
        'return crc32(base_offset.to_bytes(8, "big"))',
        "return 0",
        f"{_STORED}test_a_damaged_index_is_not_believed_and_made_again",
    ),
    bound(
        "an-index-of-another-header-is-used",
        _LOG,
        "segment.filters.is_of(header, segment.size)",
        "bool(segment.filters.pages)",
        f"{_STORED}test_another_header_needs_another_index",
    ),
    bound(
        "what-is-not-durable-is-indexed",
        _LOG,
        "            if following.base_offset > self.recovery_point:\n                break\n",
        "",
        f"{_STORED}test_only_what_is_durable_is_indexed",
    ),
    bound(
        "a-cut-segment-keeps-its-index",
        "storage.segments.segment_chain",
        "        self._drop_filters(segment)\n        if position",
        "        if position",
        f"{_STORED}test_a_crash_at_any_step_hides_nothing",
    ),
    bound(
        "a-segment-that-lost-its-end-keeps-its-index",
        "storage.log.recovery",
        "    loader.drop_filters(durable_end)\n",
        "",
        f"{_STORED}test_the_index_of_a_segment_that_lost_its_end_is_dropped",
    ),
    bound(
        "a-compacted-segment-keeps-its-index",
        "storage.segments.segment_chain",
        "_FILES_BESIDE_LOG: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, FILTER_INDEX_SUFFIX)",
        "_FILES_BESIDE_LOG: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)",
        f"{_STORED}test_deleted_segments_take_their_indexes_along",
    ),
    bound(
        "filters-look-past-what-is-readable",
        _LOG,
        "            offset = min(max(Offset(base + start), offset), offset_end)\n",
        "            offset = max(Offset(base + start), offset)\n",
        f"{_STORED}test_what_is_not_wanted_is_skipped",
    ),
    bound(
        "a-fetch-looks-at-any-number-of-pages",
        _FETCH,
        "            self._pages_left -= max(found.pages, 1)\n",
        "",
        f"{_FETCHED}test_a_filter_that_matches_nothing_is_bounded_and_then_waits",
    ),
    bound(
        "brokers-do-not-say-how-far-they-looked",
        _FETCH,
        "NO_OFFSET if self._request.wanted is None else part.next_offset",
        "NO_OFFSET",
        f"{_FETCHED}test_a_filter_that_matches_nothing_is_bounded_and_then_waits",
    ),
    bound(
        "brokers-pass-what-did-not-fit",
        _FETCH,
        "NO_OFFSET if self._request.wanted is None else part.next_offset",
        "NO_OFFSET if self._request.wanted is None else part.replica.partition.fetchable_end("
        "self._request.read_committed)",
        _SAME,
    ),
    bound(
        "a-poll-looks-at-any-number-of-records",
        "client.consumer.core",
        "while len(out) < count_max and looked_at < LOOKED_AT_MAX:",
        "while len(out) < count_max:",
        f"{_READ}test_one_poll_looks_at_a_bounded_number_of_records_and_goes_on",
    ),
    bound(
        "a-poll-that-found-nothing-waits-for-news",
        "client.consumer.core",
        "            if looked_at >= LOOKED_AT_MAX:\n                self._on_data()\n",
        "",
        f"{_READ}test_one_poll_looks_at_a_bounded_number_of_records_and_goes_on",
    ),
    bound(
        "the-consumer-believes-the-broker",
        "client.consumer.core",
        "records = [record for record in records if wants(record.headers)]",
        "records = [record for record in records if wants]",
        f"{_READ}test_brokers_leave_out_what_nobody_wants",
    ),
    bound(
        "commits-pass-what-was-not-admitted",
        "client.workers.board",
        "if held is not None and not held.stopped:\n                held.progress.passed",
        "if held is not None:\n                held.progress.passed",
        "client/workers/test_board.py::test_what_a_filter_leaves_out_is_committed_once_nothing_before_it_is_unfinished",
    ),
    bound(
        "a-copy-begins-again",
        _REPLAY,
        "            if begun:\n",
        "            if not begun and begun:\n",
        f"{_REPLAYED}test_an_interrupted_copy_goes_on_to_its_first_end",
    ),
    bound(
        "records-without-their-place",
        _REPLAY,
        "                    self._producer.send_offsets_to_transaction(places, self._group)\n",
        "                    if not records:\n"
        "                        self._producer.send_offsets_to_transaction(places, self._group)\n",
        f"{_REPLAYED}test_an_interrupted_copy_goes_on_to_its_first_end",
    ),
    bound(
        "a-place-after-its-records",
        _REPLAY,
        "                    self._producer.send_offsets_to_transaction(places, self._group)\n",
        "                with self._producer.transaction():\n"
        "                    self._producer.send_offsets_to_transaction(places, self._group)\n",
        f"{_REPLAYED}test_a_copy_that_dies_between_records_and_place_is_no_copy",
    ),
    bound(
        "an-aborted-chunk-counts",
        _REPLAY,
        "                if not error.abortable or aborted == ABORTS_MAX:\n                    raise\n",
        "                if not error.abortable or aborted == ABORTS_MAX:\n                    raise\n"
        "                break\n",
        f"{_REPLAYED}test_a_chunk_that_was_aborted_is_written_again",
    ),
    bound(
        "a-place-that-is-read-before-the-fence",
        _REPLAY,
        "            producer.init_transactions()  # an earlier run's transaction is over now, so the places are "
        "certain\n"
        "            begun = {at: given for at, given in group.committed(every).items() if given is not None}\n",
        "            begun = {at: given for at, given in group.committed(every).items() if given is not None}\n"
        "            producer.init_transactions()\n",
        f"{_REPLAYED}test_a_copy_knows_what_its_predecessor_wrote_up_to_the_fence",
    ),
    bound(
        "an-interrupted-copy-gets-another-end",
        _REPLAY,
        "            for part in parts:\n                self._copy(reader, copy, part)\n",
        "            ends = {at: end for at, _, end in self._plan(reader, chosen)}\n"
        "            for part in parts:\n"
        "                self._copy(reader, copy, part._replace(end=ends.get(part.partition, part.end)))\n",
        f"{_REPLAYED}test_an_interrupted_copy_goes_on_to_its_first_end",
    ),
    bound(
        "a-copy-of-a-copy-comes-back",
        _REPLAY,
        "                return True\n        return False\n",
        "                return False\n        return False\n",
        f"{_REPLAYED}test_a_copy_of_a_copy_does_not_come_back",
    ),
    bound(
        "a-topic-is-copied-into-itself",
        _REPLAY,
        "        if topic == self._topic:\n",
        "        if not topic:\n",
        f"{_REPLAYED}test_wrong_arguments",
    ),
    bound(
        "an-id-is-anybodys",
        _REPLAY,
        "if not end.isdigit() or self.place(0, int(end)).metadata != given.metadata:",
        "if not end.isdigit():",
        f"{_REPLAYED}test_an_id_belongs_to_one_copy",
    ),
    bound(
        "a-group-in-use-is-moved",
        _REPLAY,
        "            if known:\n",
        "            if known and not known:\n",
        f"{_REPLAYED}test_a_new_group_begins_there_and_a_used_one_is_refused",
    ),
)


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
