"""What a record of a delay topic asks for, and where it goes: by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordinators.delays.orders import (
    AGAIN,
    ATTEMPTS_MAX,
    DEAD,
    DELIVERED,
    Router,
    Sent,
    Target,
    asked_of,
    plain_due_ms,
)
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.config_def import ConfigError
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.decoder import Record

APPENDED_MS = 1_000_000
OFFSET = 7
LATER = TopicPartition("later", 0)
CONFIG = TopicConfig(delay_enable=True, delay_target="bills", delay_dead_letter_topic="dead")
OPEN = TopicConfig(delay_sources=("later",))


def record(**told: object) -> Record:
    headers = tuple(("tidelog-" + name.replace("_", "-"), str(value).encode()) for name, value in told.items())
    return Record(OFFSET, APPENDED_MS, b"k", b"v", headers)


@pytest.mark.parametrize(
    ("told", "due_ms"),
    [
        ({"delay_ms": 5}, APPENDED_MS + 5),
        ({"deliver_at": APPENDED_MS + 9, "delay_ms": 5}, APPENDED_MS + 9),
        ({"deliver_at": 3}, APPENDED_MS),  # not before it was there
        ({"delay_ms": 5, "delay_again": f"{APPENDED_MS + 70},1,3,{APPENDED_MS - 50}"}, APPENDED_MS + 70),
    ],
)
def test_when_it_is_due(told: dict[str, object], due_ms: int) -> None:
    asked = asked_of(record(**told))
    assert (asked.due_ms, asked.fault) == (due_ms, "")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"delay_ms": -1},
        {"delay_ms": "1.5"},
        {"deliver_at": "9" * 30},
        {"delay_ms": 366 * 86_400_000},
        {"delay_ms": 5, "delay_again": f"{APPENDED_MS + 366 * 86_400_000},1,3,{APPENDED_MS}"},
        {"cancel": "x"},
    ],
)
def test_what_cannot_be_read_is_due_at_once(told: dict[str, object]) -> None:
    asked = asked_of(record(**told))
    assert asked.due_ms == APPENDED_MS
    assert "expected" in asked.fault


NAMES = st.sampled_from(
    [f"tidelog-{name}" for name in ("deliver-at", "delay-ms", "deliver-to", "expires-at", "cancel", "delay-again")]
    + ["own"]
)
NUMBERS = st.integers(0, 2 * APPENDED_MS + 366 * 86_400_000).map(lambda number: b"%d" % number)
VALUES = st.one_of(st.none(), NUMBERS, st.sampled_from([b"bills", b"\xff", b"", b"-1", b"9" * 19, b"007"]))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=3))
def test_the_short_way_finds_the_same_time(headers: list[tuple[str, bytes | None]]) -> None:
    found = Record(OFFSET, APPENDED_MS, None, b"v", tuple(headers))
    asked, plain = asked_of(found), plain_due_ms(found)
    assert plain is None or (asked.due_ms, asked.cancels, asked.fault) == (plain, None, "")


def test_the_short_way_is_taken() -> None:
    assert plain_due_ms(record(delay_ms=5, deliver_to="bills")) == APPENDED_MS + 5


def test_a_cancel_asks_for_nothing_else() -> None:
    assert asked_of(record(cancel=3)).cancels == 3


def sent(told: dict[str, object], *targets: Target, now_ms: int = APPENDED_MS + 10, refusal: str = "") -> Sent | str:
    known = {target.name: target for target in targets}
    found = record(**told)
    return Router(LATER, CONFIG, known.get, now_ms).route(found, asked_of(found), refusal)


BILLS, DEAD_TOPIC = Target("bills", 1, OPEN), Target("dead", 1, OPEN)
AWAY = Target("bills", 1, OPEN, frozenset({0}))


def test_a_record_whose_target_is_away_is_put_off_and_keeps_its_origin() -> None:
    put_off = sent({"delay_ms": 5}, AWAY, DEAD_TOPIC)
    assert isinstance(put_off, Sent)
    assert (put_off.kind, put_off.to) == (AGAIN, LATER)
    again = Record(20, APPENDED_MS + 11, put_off.key, put_off.value, put_off.headers)
    asked = asked_of(again)
    assert (asked.attempt, asked.first_offset, asked.first_ms) == (1, 7, APPENDED_MS)
    assert asked.due_ms == APPENDED_MS + 10 + 1_000
    arrived = Router(LATER, CONFIG, {"bills": BILLS}.get, asked.due_ms).route(again, asked)
    assert isinstance(arrived, Sent)
    assert arrived.kind == DELIVERED
    assert dict(arrived.headers)["tidelog-delay-id"] == b"later-0-7"
    assert dict(arrived.headers)["tidelog-delay-due"] == b"%d" % (APPENDED_MS + 5), "when its client wanted it"
    assert arrived.timestamp == asked.due_ms
    assert "tidelog-delay-again" not in dict(arrived.headers)


def test_after_many_attempts_it_is_a_dead_letter() -> None:
    told = {"delay_ms": 5, "delay_again": f"{APPENDED_MS},{ATTEMPTS_MAX},7,{APPENDED_MS}"}
    dead = sent(told, AWAY, DEAD_TOPIC)
    assert isinstance(dead, Sent)
    assert (dead.kind, dead.to.topic) == (DEAD, "dead")


def test_what_the_target_refused_is_a_dead_letter_that_says_so() -> None:
    dead = sent({"delay_ms": 5}, BILLS, DEAD_TOPIC, refusal="bills-0 refused it: MESSAGE_TOO_LARGE")
    assert isinstance(dead, Sent)
    assert b"MESSAGE_TOO_LARGE" in (dict(dead.headers)["__dlq.errors.message"] or b"")


@pytest.mark.parametrize(
    ("told", "ttl_ms", "kind"),
    [
        ({"delay_ms": 5}, 5, DEAD),  # due five before now
        ({"delay_ms": 5}, 6, DELIVERED),
        ({"delay_ms": 5}, -1, DELIVERED),
        ({"delay_ms": 5, "expires_at": APPENDED_MS + 10}, -1, DEAD),
        ({"delay_ms": 5, "expires_at": APPENDED_MS + 11}, -1, DELIVERED),
        ({"delay_ms": 5, "delay_again": f"{APPENDED_MS + 9},1,7,{APPENDED_MS}"}, 5, DEAD),  # counted from the first
    ],
)
def test_what_comes_too_late_is_a_dead_letter(told: dict[str, object], ttl_ms: int, kind: str) -> None:
    target = Target("bills", 1, TopicConfig(delay_sources=("later",), message_ttl_ms=ttl_ms))
    found = sent(told, target, DEAD_TOPIC)
    assert isinstance(found, Sent)
    assert found.kind == kind
    assert (dict(found.headers).get("tidelog-dlq-reason") == b"expired") == (kind == DEAD)


@pytest.mark.parametrize("letters", [(), (Target("dead", 1, TopicConfig()),)])
def test_without_dead_letters_it_stays(letters: tuple[Target, ...]) -> None:
    kept = sent({}, BILLS, *letters)
    assert isinstance(kept, str)
    assert "delay.dead.letter.topic" in kept


GOOD = {
    "delay.enable": "true",
    "delay.dead.letter.topic": "dead",
    "message.timestamp.type": "LogAppendTime",
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cleanup.policy": "compact"}, "not compacted"),
        ({"message.timestamp.type": "CreateTime"}, "LogAppendTime"),
        ({"delay.dead.letter.topic": ""}, "delay.dead.letter.topic"),
    ],
)
def test_settings_of_a_delay_topic_fit_together(changed: dict[str, str], message: str) -> None:
    assert not TopicConfig.parse(GOOD).deletes, "nothing goes before it is delivered"
    with pytest.raises(ConfigError, match=message):
        TopicConfig.parse({**GOOD, **changed})
