"""The record of a sink's ledger: written and read again, and malformed ones refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord
from tidelog.proto.logs.coordinator_records import UnknownKey
from tidelog.proto.logs.sink_records import (
    SINK_KEY_VERSION,
    SinkLedgerValue,
    decode_sink_key,
    decode_sink_value,
    encode_sink_key,
    encode_sink_value,
)
from tidelog.proto.logs.transaction_records import decode_transaction_key, encode_transaction_key

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-1, 2**63 - 1)
values = st.builds(
    SinkLedgerValue, numbers, texts, numbers, numbers, texts, numbers, st.lists(st.tuples(texts, numbers)).map(tuple)
)
KEY = "2710000673696e6b2d31"
VALUE = (
    "00000000000000000007" "0001" "6a" "0000018bcfe56800" "0000000000000008" "0001" "6b" "0000018bcfe568ff"
    "00000001" "0001" "6c" "0000000000000008"
)  # fmt: skip


def test_the_bytes_stay_what_they_are() -> None:
    """Logs have them."""
    value = SinkLedgerValue(7, "j", 1_700_000_000_000, 8, "k", 1_700_000_000_255, (("l", 8),))
    assert encode_sink_key("sink-1").hex() == KEY
    assert encode_sink_value(value).hex() == VALUE
    assert decode_sink_key(bytes.fromhex(KEY)) == "sink-1"
    assert decode_sink_value(bytes.fromhex(VALUE)) == value
    assert decode_sink_value(bytes.fromhex(VALUE + "ff")) == value, "a later version may have more"


@given(texts.filter(bool))
def test_keys_are_read_as_they_were_written(sink: str) -> None:
    key = encode_sink_key(sink)
    assert decode_sink_key(key) == sink
    assert decode_transaction_key(key) == UnknownKey(SINK_KEY_VERSION), "Kafka's reader passes it over"
    assert decode_sink_key(encode_transaction_key(sink)) is None


@given(values)
def test_values_are_read_as_they_were_written(value: SinkLedgerValue) -> None:
    assert decode_sink_value(encode_sink_value(value)) == value


@given(values, st.data())
def test_what_is_cut_off_is_refused(value: SinkLedgerValue, data: st.DataObject) -> None:
    raw = encode_sink_value(value)
    with pytest.raises(BadCoordinatorRecord):
        decode_sink_value(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=80))
def test_other_bytes_are_refused_or_read_and_nothing_else_happens(raw: bytes) -> None:
    for decode in (decode_sink_key, decode_sink_value):
        try:
            decode(raw)
        except BadCoordinatorRecord as bad:
            assert "expected" in str(bad)


@pytest.mark.parametrize("raw", ["0001", "ffff", "27100000", "2710ffff", "271000ff61"])
def test_bad_keys_and_versions(raw: str) -> None:
    with pytest.raises(BadCoordinatorRecord):
        decode_sink_key(bytes.fromhex(raw)) if raw.startswith("2710") else decode_sink_value(bytes.fromhex(raw))
