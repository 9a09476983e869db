"""Mutants of the outbox: the usual wrong cures for transactions that commit late, and rules that protect from restored
databases. With each of them, the test that is named beside it fails."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

_ORDER = "client/outbox/test_postgres_order.py::"
_RANDOM = f"{_ORDER}test_random_schedules"
_POSTGRES = "client.outbox.postgres"
MUTANTS = (
    bound(
        "rows-by-number-alone",
        _POSTGRES,
        '::text::bigint") < transaction_id:\n',
        '::text::bigint") < 0:\n',
        _RANDOM,
    ),
    bound(
        "rows-by-their-time",
        _POSTGRES,
        "seq <= %s ORDER BY seq LIMIT",
        "seq <= %s ORDER BY created_at LIMIT",
        _RANDOM,
    ),
    bound(
        "rows-by-transaction-id",
        _POSTGRES,
        "seq <= %s ORDER BY seq LIMIT",
        "seq <= %s ORDER BY xmin::text::bigint, seq LIMIT",
        _RANDOM,
    ),
    bound(
        "a-barrier-of-others-ids",
        _POSTGRES,
        "SELECT pg_current_xact_id()::text::bigint",
        "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
        _RANDOM,
    ),
    bound(
        "an-id-before-the-number-is-noted",
        _POSTGRES,
        "                last = self._last()\n                if last <= self._decided:\n                    break\n"
        "                self._barrier = last, self._number(",
        '                drawn = self._number("SELECT pg_current_xact_id()::text::bigint")\n'
        "                last = self._last()\n                if last <= self._decided:\n                    break\n"
        "                self._barrier = last, drawn or self._number(",
        f"{_ORDER}test_the_number_is_noted_before_the_id_is_drawn",
    ),
    bound(
        "nothing-up-to-a-number-is-nothing-at-all",
        _POSTGRES,
        "            self._barrier, self._decided = None, last\n",
        "            self._barrier, self._decided = None, last\n            return self._rows(seq, most)\n",
        f"{_ORDER}test_what_came_while_it_waited_for_nothing_is_there_too",
    ),
    bound(
        "a-number-before-the-id",
        _POSTGRES,
        "                        PERFORM pg_current_xact_id();  -- an id before a number: the relay relies on it\n",
        "",
        f"{_ORDER}test_a_writer_has_an_id_before_it_has_a_number",
    ),
    bound(
        "a-restored-database-that-has-caught-up",
        "client.outbox.relay",
        " or (left and last_id and left != (committed.offset, last_id)):\n",
        ":\n",
        "client/outbox/test_postgres_relay.py::test_what_went_wrong_is_said_and_nothing_is_lost",
    ),
    bound(
        "a-place-that-is-read-before-the-fence",
        "client.outbox.relay",
        "            producer.init_transactions()  # an older relay's transaction is over now, so the position is "
        "certain\n            lost = 0\n",
        "            committed = consumer.committed([self._at])\n"
        "            consumer.committed = lambda _: committed\n"
        "            producer.init_transactions()\n"
        "            lost = 0\n",
        "client/outbox/test_relay.py::test_a_relay_knows_what_its_predecessor_sent_up_to_the_fence",
    ),
    bound(
        "a-record-is-always-new",
        "client.outbox.inbox",
        "        return self._noted(connection, self._id(record)) == 1\n",
        "        return self._noted(connection, self._id(record)) >= 0\n",
        "client/outbox/test_inbox.py::test_a_record_is_new_once[sqlite]",
    ),
    bound(
        "an-inbox-without-a-transaction",
        "client.outbox.inbox",
        "        if self._commits_by_itself(connection):\n",
        "        if False:\n",
        "client/outbox/test_inbox.py::test_what_cannot_be_noted_is_refused[sqlite]",
    ),
    bound(
        "rolled-back-numbers-are-a-loss",
        _POSTGRES,
        'self._number("SELECT deleted FROM outbox_identity")',
        'self._number("SELECT coalesce(min(seq) - 1, (SELECT last_value FROM outbox_seq)) FROM outbox")',
        "client/outbox/test_postgres_relay.py::test_a_lost_place_is_not_guessed",
    ),
)


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
