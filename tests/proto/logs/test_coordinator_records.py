"""Coordinator records against bytes that Kafka 4.1.0's own classes wrote (``MessageUtil.toVersionPrefixedBytes`` of
the generated messages of its group-coordinator module; the last two through ``GroupCoordinatorRecordHelpers``)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.logs.coordinator_records import (
    STRING_BYTES_MAX,
    BadCoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)

OFFSET_KEYS = {
    0: bytes.fromhex("000000096772757070652dc3a90007666c696768747300000007"),
    1: bytes.fromhex("000100096772757070652dc3a90007666c696768747300000007"),
}
OFFSET_VALUES = {
    0: bytes.fromhex("00000000011f71fb04cb00046dc3a9740000018bcfe5687b"),
    1: bytes.fromhex("00010000011f71fb04cb00046dc3a9740000018bcfe5687b0000018bcfe65260"),
    2: bytes.fromhex("00020000011f71fb04cb00046dc3a9740000018bcfe5687b"),
    3: bytes.fromhex("00030000011f71fb04cb0000000500046dc3a9740000018bcfe5687b"),
    4: bytes.fromhex("00040000011f71fb04cb00000005056dc3a9740000018bcfe5687b00"),
}
OFFSET_VALUE_WITH_TOPIC_ID = bytes.fromhex(
    "00040000000000000009ffffffff010000018bcfe5687b010010000102030405060708090a0b0c0d0e0f"
)
GROUP_KEY = bytes.fromhex("000200096772757070652dc3a9")
GROUP_VALUES = {
    0: bytes.fromhex(
        "00000008636f6e73756d65720000002a000572616e67650003632d31000000020003632d31000163000a2f3132372e30"
        "2e302e310000afc8000000030001020000000203040003632d320000000168000017700000000000000000"
    ),
    1: bytes.fromhex(
        "00010008636f6e73756d65720000002a000572616e67650003632d31000000020003632d31000163000a2f3132372e30"
        "2e302e31000493e00000afc8000000030001020000000203040003632d3200000001680000ea60000017700000000000"
        "000000"
    ),
    2: bytes.fromhex(
        "00020008636f6e73756d65720000002a000572616e67650003632d310000018bcfe569c8000000020003632d31000163"
        "000a2f3132372e302e302e31000493e00000afc8000000030001020000000203040003632d3200000001680000ea6000"
        "0017700000000000000000"
    ),
    3: bytes.fromhex(
        "00030008636f6e73756d65720000002a000572616e67650003632d310000018bcfe569c8000000020003632d31000469"
        "6e7374000163000a2f3132372e302e302e31000493e00000afc8000000030001020000000203040003632d32ffff0000"
        "0001680000ea60000017700000000000000000"
    ),
    4: bytes.fromhex(
        "000409636f6e73756d65720000002a0672616e676504632d310000018bcfe569c80304632d3105696e737402630b2f31"
        "32372e302e302e31000493e00000afc8040001020303040004632d32000102680000ea600000177001010000"
    ),
}
EMPTY_GROUP_VALUES = {
    0: bytes.fromhex("0000000000000000ffffffff00000000"),
    1: bytes.fromhex("0001000000000000ffffffff00000000"),
    2: bytes.fromhex("0002000000000000ffffffff0000018bcfe569c800000000"),
    3: bytes.fromhex("0003000000000000ffffffff0000018bcfe569c800000000"),
    4: bytes.fromhex("0004010000000000000000018bcfe569c80100"),
}
OTHER_KEY = bytes.fromhex("000300036e6577")  # ConsumerGroupMetadataKey, of the newer group protocol
TOMBSTONE_OFFSET_KEY = bytes.fromhex("000100016700017400000003")
TOMBSTONE_GROUP_KEY = bytes.fromhex("0002000167")
HELPERS_GROUP_VALUE = bytes.fromhex("00030008636f6e73756d657200000007ffffffff0000018bcfe569c800000000")

COMMIT = OffsetCommitValue(Offset(1234567890123), LeaderEpoch(5), "mét", 1700000000123)


def _group(version: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        "consumer",
        42,
        "range",
        "c-1",
        1700000000456 if version >= 2 else -1,
        (
            MemberMetadata(
                "c-1",
                "inst" if version >= 3 else None,
                "c",
                "/127.0.0.1",
                300000 if version >= 1 else -1,
                45000,
                b"\0\1\2",
                b"\3\4",
            ),
            MemberMetadata("c-2", None, "", "h", 60000 if version >= 1 else -1, 6000, b"", b""),
        ),
    )


def test_keys_are_kafkas() -> None:
    key = OffsetCommitKey("gruppe-é", "flights", 7)
    assert encode_offset_key(*key) == OFFSET_KEYS[1]
    assert [decode_key(raw) for raw in OFFSET_KEYS.values()] == [key, key]
    assert encode_group_key("gruppe-é") == GROUP_KEY
    assert decode_key(GROUP_KEY) == GroupMetadataKey("gruppe-é")
    assert encode_offset_key("g", "t", 3) == TOMBSTONE_OFFSET_KEY
    assert encode_group_key("g") == TOMBSTONE_GROUP_KEY


def test_keys_of_other_software_are_passed_over() -> None:
    assert decode_key(OTHER_KEY) == UnknownKey(3)
    assert decode_key(b"\x7f\xff") == UnknownKey(32767)


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_offset_values_of_each_version(version: int) -> None:
    expected = OffsetCommitValue(
        COMMIT.offset,
        LeaderEpoch(5 if version >= 3 else -1),
        "mét",
        COMMIT.commit_timestamp,
        1700000060000 if version == 1 else -1,
    )
    assert decode_offset_value(OFFSET_VALUES[version]) == expected


def test_offset_values_are_written_as_version_3() -> None:
    assert encode_offset_value(COMMIT) == OFFSET_VALUES[3]


def test_tagged_fields_are_passed_over() -> None:
    found = decode_offset_value(OFFSET_VALUE_WITH_TOPIC_ID)
    assert found == OffsetCommitValue(Offset(9), LeaderEpoch(-1), "", 1700000000123)


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_group_values_of_each_version(version: int) -> None:
    assert decode_group_value(GROUP_VALUES[version]) == _group(version)
    since = 1700000000456 if version >= 2 else -1
    assert decode_group_value(EMPTY_GROUP_VALUES[version]) == GroupMetadataValue("", 0, None, None, since, ())


def test_group_values_are_written_as_version_3() -> None:
    assert encode_group_value(_group(3)) == GROUP_VALUES[3]
    assert encode_group_value(GroupMetadataValue("", 0, None, None, 1700000000456, ())) == EMPTY_GROUP_VALUES[3]
    empty = GroupMetadataValue("consumer", 7, None, None, 1700000000456, ())
    assert encode_group_value(empty) == HELPERS_GROUP_VALUE


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "expected 2 more bytes"),
        (b"\xff\xff", "expected a key version of 0 or more, found -1"),
        (b"\0\2\xff\xff", "expected a string"),
        (b"\0\2\0\1\xff", "expected UTF-8"),
        (OFFSET_KEYS[1][:-1], "expected 4 more bytes"),
    ],
)
def test_malformed_keys(raw: bytes, text: str) -> None:
    with pytest.raises(BadCoordinatorRecord, match=text):
        decode_key(raw)


def test_malformed_values() -> None:
    with pytest.raises(BadCoordinatorRecord, match="expected offset value version 0 to 4, found 5"):
        decode_offset_value(b"\0\5" + OFFSET_VALUES[4][2:])
    with pytest.raises(BadCoordinatorRecord, match="expected a length of 0 to"):
        decode_group_value(EMPTY_GROUP_VALUES[3][:-4] + b"\x7f\xff\xff\xff")
    with pytest.raises(BadCoordinatorRecord, match="varint"):
        decode_offset_value(OFFSET_VALUES[4][:-1] + b"\xff" * 6)


def test_lengths_below_zero_are_found_where_many_are_read_too() -> None:
    with pytest.raises(BadCoordinatorRecord, match="expected a string"):
        decode_key(b"\0\1\xff\xff" + OFFSET_KEYS[1][4:])
    with pytest.raises(BadCoordinatorRecord, match="expected a string"):
        decode_key(b"\0\1\0\1g\xff\xff" + bytes(8))
    with pytest.raises(BadCoordinatorRecord, match="expected a string"):
        decode_offset_value(OFFSET_VALUES[3][:14] + b"\xff\xff" + bytes(8))
    with pytest.raises(BadCoordinatorRecord, match="UTF-8"):
        decode_key(b"\0\1\0\1\xff\0\1t" + bytes(4))


def test_strings_have_a_bound() -> None:
    assert decode_key(encode_group_key("x" * STRING_BYTES_MAX)) == GroupMetadataKey("x" * STRING_BYTES_MAX)
    with pytest.raises(ValueError, match="at most 32767 bytes, found 32768"):
        encode_group_key("x" * (STRING_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("decode", "raw"),
    [(decode_offset_value, value) for value in OFFSET_VALUES.values()]
    + [(decode_group_value, value) for value in GROUP_VALUES.values()],
)
def test_every_cut_is_found(decode, raw: bytes) -> None:  # type: ignore[no-untyped-def]
    for size in range(len(raw)):
        with pytest.raises(BadCoordinatorRecord):
            decode(raw[:size])


@given(st.binary(max_size=200))
def test_nothing_else_is_raised(raw: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        try:
            decode(raw)
        except BadCoordinatorRecord:
            pass


@given(
    st.builds(
        GroupMetadataValue,
        st.text(max_size=5),
        st.integers(0, 2**31 - 1),
        st.none() | st.text(max_size=5),
        st.none() | st.text(max_size=5),
        st.integers(-1, 2**40),
        st.lists(
            st.builds(
                MemberMetadata,
                st.text(max_size=5),
                st.none() | st.text(max_size=5),
                st.text(max_size=5),
                st.text(max_size=5),
                st.integers(0, 2**31 - 1),
                st.integers(0, 2**31 - 1),
                st.binary(max_size=9),
                st.binary(max_size=9),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_groups_come_back(value: GroupMetadataValue) -> None:
    assert decode_group_value(encode_group_value(value)) == value
