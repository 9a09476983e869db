"""The records of ``__transaction_state`` against bytes that Kafka 4.1.0's own classes wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.ids import ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord
from tidelog.proto.logs.coordinator_records import UnknownKey
from tidelog.proto.logs.transaction_records import (
    NO_TIMEOUT_MS,
    TransactionLogKey,
    TransactionLogValue,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)

PARTITIONS = (
    TopicPartition("orders", 0),
    TopicPartition("orders", 7),
    TopicPartition("orders", 300),
    TopicPartition("__consumer_offsets", 49),
)
_PARTITIONS_1 = "03076f72646572730400000000000000070000012c00135f5f636f6e73756d65725f6f6666736574730200000031"
UPDATED, STARTED = 1_700_000_000_123, 1_700_000_000_001


def value(producer_id: int, epoch: int, status: int, **changes: object) -> TransactionLogValue:
    found = TransactionLogValue(
        ProducerId(producer_id), ProducerEpoch(epoch), 60_000, status, PARTITIONS, UPDATED, STARTED
    )
    return found._replace(**changes)  # type: ignore[arg-type]


# Written by TransactionLogKey and TransactionLogValue of kafka-transaction-coordinator 4.1.0.
GOLDEN_KEYS = {
    "transfers": "000000097472616e7366657273",
    "Grüße-😀": "0000000c4772c3bcc39f652df09f9880",
}
GOLDEN = {
    "empty": (
        value(4_711, 0, 0, partitions=(), last_update_timestamp=1_700_000_000_000, start_timestamp=-1),
        "0001000000000000126700000000ea6000000000018bcfe56800ffffffffffffffff00",
    ),
    "ongoing": (
        value(4_711, 3, 1, client_version=2),
        "0001000000000000126700030000ea600103076f72646572730400000000000000070000012c00135f5f636f6e73756d65725f6f6666"
        "736574730200000031000000018bcfe5687b0000018bcfe568010102020002",
    ),
    "prepare commit, followed by another producer id": (
        value(4_711, 32_767, 2, client_version=2, previous_producer_id=4_711, next_producer_id=9_000_000_000),
        "000100000000000012677fff0000ea600203076f72646572730400000000000000070000012c00135f5f636f6e73756d65725f6f6666"
        "736574730200000031000000018bcfe5687b0000018bcfe56801030008000000000000126701080000000218711a0002020002",
    ),
    "prepare abort, with every field of Kafka's": (
        value(
            4_711,
            4,
            3,
            client_version=2,
            previous_producer_id=4_711,
            next_producer_id=12,
            next_producer_epoch=5,
        ),
        "0001000000000000126700040000ea600303076f72646572730400000000000000070000012c00135f5f636f6e73756d65725f6f6666"
        "736574730200000031000000018bcfe5687b0000018bcfe5680104000800000000000012670108000000000000000c02020002030200"
        "05",
    ),
    "complete commit": (
        value(9_000_000_000, 0, 4, partitions=(), client_version=2, previous_producer_id=4_711),
        "00010000000218711a0000000000ea6004010000018bcfe5687b0000018bcfe56801020008000000000000126702020002",
    ),
}
GOLDEN_VERSION_0 = {
    "empty": (
        value(4_711, 0, 0, partitions=(), last_update_timestamp=1_700_000_000_000, start_timestamp=-1),
        "0000000000000000126700000000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
    ),
    "ongoing": (
        value(4_711, 3, 1),
        "0000000000000000126700030000ea60010000000200066f72646572730000000300000000000000070000012c00125f5f636f6e7375"
        "6d65725f6f66667365747300000001000000310000018bcfe5687b0000018bcfe56801",
    ),
    "complete abort": (
        value(4_711, 4, 5, partitions=()),
        "0000000000000000126700040000ea6005000000000000018bcfe5687b0000018bcfe56801",
    ),
}


@pytest.mark.parametrize("transactional_id", list(GOLDEN_KEYS))
def test_keys_are_kafkas(transactional_id: str) -> None:
    raw = bytes.fromhex(GOLDEN_KEYS[transactional_id])
    assert encode_transaction_key(transactional_id) == raw
    assert decode_transaction_key(raw) == TransactionLogKey(transactional_id)


@pytest.mark.parametrize("name", list(GOLDEN))
def test_values_are_kafkas(name: str) -> None:
    expected, golden = GOLDEN[name]
    raw = bytes.fromhex(golden)
    assert encode_transaction_value(expected) == raw
    assert decode_transaction_value(raw) == expected


@pytest.mark.parametrize("name", list(GOLDEN_VERSION_0))
def test_values_of_version_0_are_read(name: str) -> None:
    expected, golden = GOLDEN_VERSION_0[name]
    assert decode_transaction_value(bytes.fromhex(golden)) == expected


def test_what_is_prepared_is_open_without_a_timeout_to_kafkas_reader() -> None:
    """These very bytes were read by Kafka's ``TransactionLogValue``: status 1, timeout 2147483647, three unknown tagged
    fields, nothing left over."""
    raw = encode_transaction_value(
        value(
            4_711,
            3,
            1,
            previous_producer_id=4_711,
            next_producer_id=77,
            next_producer_epoch=2,
            last_producer_epoch=1,
            client_version=2,
            two_phase=True,
            prepared=True,
            kept=True,
        )
    )
    assert raw.hex() == (
        "0001000000000000126700037fffffff01"
        + _PARTITIONS_1
        + "000000018bcfe5687b0000018bcfe5680107000800000000000012670108000000000000004d0202000203020002904e0107914e"
        "020001924e040000ea60"
    )
    assert raw[12:16] == NO_TIMEOUT_MS.to_bytes(4, "big")
    assert decode_transaction_value(raw).timeout_ms == 60_000


def test_fields_that_nobody_knows_are_passed_over() -> None:
    expected, golden = GOLDEN["complete commit"]
    raw = bytes.fromhex(golden)
    at = raw.index(bytes.fromhex("0200080000000000001267"))
    with_more = raw[:at] + b"\x03" + raw[at + 1 :] + b"\xc8\x01\x03abc"
    assert decode_transaction_value(with_more) == expected


def test_other_keys_are_told_apart() -> None:
    assert decode_transaction_key(b"\x00\x01abc") == UnknownKey(1)
    for raw in (b"", b"\x00", b"\xff\xff", b"\x00\x00\x00\x05abc", b"\x00\x00\xff\xff", b"\x00\x00\x00\x01\xff"):
        with pytest.raises(BadCoordinatorRecord, match="expected"):
            decode_transaction_key(raw)


def test_an_id_that_is_too_long_is_refused() -> None:
    assert len(encode_transaction_key("x" * 32_767)) == 32_771
    with pytest.raises(ValueError, match="at most 32767 bytes, found 32768"):
        encode_transaction_key("x" * 32_768)


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_value_that_is_cut_off_is_refused(name: str) -> None:
    raw = bytes.fromhex(GOLDEN[name][1])
    for size in range(len(raw)):
        with pytest.raises(BadCoordinatorRecord, match="expected"):
            decode_transaction_value(raw[:size])


@pytest.mark.parametrize("raw", [b"\x00\x02" + bytes(60), b"\x00\x00" + bytes(14) + b"\x08" + bytes(20)])
def test_versions_and_states_that_nobody_knows_are_refused(raw: bytes) -> None:
    with pytest.raises(BadCoordinatorRecord, match="expected"):
        decode_transaction_value(raw)


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x00\x00", b"\x00\x01"]))
def test_whatever_the_bytes_it_is_a_value_or_refused(raw: bytes, start: bytes) -> None:
    for read in (decode_transaction_value, decode_transaction_key):
        try:
            read(start + raw)
        except BadCoordinatorRecord as cause:
            assert "expected" in str(cause)


epochs = st.integers(-1, 32_767)
producer_ids = st.integers(-1, 2**63 - 1)
names = st.sampled_from(["a", "b", "__consumer_offsets", "x" * 249])


@given(
    st.builds(
        TransactionLogValue,
        producer_ids,
        epochs,
        st.integers(0, 2**31 - 1),
        st.integers(1, 5),
        st.lists(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), unique=True, max_size=200).map(
            lambda found: tuple(sorted(found))
        ),
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        producer_ids,
        producer_ids,
        epochs,
        epochs,
        st.integers(0, 9),
        st.booleans(),
        st.just(False),
        st.booleans(),
    ),
    st.booleans(),
)
def test_what_is_written_is_read(found: TransactionLogValue, prepared: bool) -> None:
    if prepared:
        found = found._replace(status=1, prepared=True)
    assert decode_transaction_value(encode_transaction_value(found)) == found
