"""Records of consumer groups: the bytes that Kafka's message definitions prescribe, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.ids import TopicId
from tidelog.proto.logs.consumer_group_records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ClassicMember,
    ConsumerKey,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberSubscription,
    ResolvedRegex,
    Target,
    TargetEpoch,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord

T = TopicId(bytes(range(16)))
ID = T.hex()
# Written out by hand from Kafka 4.3's ConsumerGroup*Key.json and *Value.json: keys are not flexible, values are.
KEYS = [
    (ConsumerKey(GROUP, "g"), "0003 0001 67"),
    (ConsumerKey(MEMBER, "g", "m1"), "0005 0001 67 0002 6d31"),
    (ConsumerKey(TARGET_EPOCH, "g"), "0006 0001 67"),
    (ConsumerKey(TARGET, "g", "m1"), "0007 0001 67 0002 6d31"),
    (ConsumerKey(CURRENT, "g", "m1"), "0008 0001 67 0002 6d31"),
    (ConsumerKey(REGEX, "g", "t.*"), "0010 0001 67 0003 742e2a"),
]
VALUES: list[tuple[int, ConsumerValue, str]] = [
    (GROUP, GroupEpoch(7), "0000 00000007 00"),
    (GROUP, GroupEpoch(7, -2), "0000 00000007 01 00 08 fffffffffffffffe"),
    (
        MEMBER,
        MemberSubscription("i", None, "c", "/h", ("t", "u"), "x", 300_000, None),
        "0000 02 69 00 02 63 03 2f68 03 02 74 02 75 02 78 000493e0 00 00",
    ),
    (
        MEMBER,  # as Kafka 4.3.1's ConsumerGroupMemberMetadataValue writes it
        MemberSubscription(
            "i",
            None,
            "c",
            "/h",
            ("t", "u"),
            None,
            60_000,
            None,
            ClassicMember(45_000, (("range", b"\0\1\2"), ("sticky", b""))),
        ),
        "0000 0269 00 0263 032f68 03 0274 0275 00 0000ea60 00 01 00 1b 01 0000afc8 03"
        " 0672616e6765 04000102 00 07737469636b79 01 00 00",
    ),
    (TARGET_EPOCH, TargetEpoch(9, 1), "0000 00000009 01 00 08 0000000000000001"),
    (TARGET, Target({T: frozenset((2, 1))}), f"0000 02 {ID} 03 00000001 00000002 00 00"),
    (
        CURRENT,
        CurrentAssignment(5, 4, 1, {T: {0: 3}}, {T: {1: 5}}),
        f"0000 00000005 00000004 01 02 {ID} 02 00000000 01 00 05 02 00000003"
        f" 02 {ID} 02 00000001 01 00 05 02 00000005 00",
    ),
    (REGEX, ResolvedRegex(("t",), 3, 4), "0000 02 02 74 0000000000000003 0000000000000004 00"),
]


@pytest.mark.parametrize(("key", "raw"), KEYS)
def test_keys(key: ConsumerKey, raw: str) -> None:
    assert encode_consumer_key(key) == bytes.fromhex(raw)
    assert decode_consumer_key(bytes.fromhex(raw)) == key


@pytest.mark.parametrize(("kind", "value", "raw"), VALUES)
def test_values(kind: int, value: ConsumerValue, raw: str) -> None:
    assert encode_consumer_value(value) == bytes.fromhex(raw)
    assert decode_consumer_value(kind, bytes.fromhex(raw)) == value


def test_before_assignment_epochs_the_members_epoch_stands_for_them() -> None:
    """As Kafka 4.0 to 4.2 wrote it."""
    raw = bytes.fromhex(f"0000 00000005 00000004 00 02 {ID} 02 00000007 00 01 00")
    assert decode_consumer_value(CURRENT, raw) == CurrentAssignment(5, 4, 0, {T: {7: 5}}, {})


@pytest.mark.parametrize("kind", [0, 2, 4, 9, 15, 17])
def test_other_kinds_are_somebody_elses(kind: int) -> None:
    assert decode_consumer_key(kind.to_bytes(2) + b"\0\1g") is None


@pytest.mark.parametrize(("kind", "value", "raw"), VALUES)
def test_a_value_that_is_cut_off_is_said_to_be(kind: int, value: ConsumerValue, raw: str) -> None:
    whole = bytes.fromhex(raw)
    for size in range(len(whole) - 1):
        try:
            found = decode_consumer_value(kind, whole[:size])
        except BadCoordinatorRecord:
            continue
        assert kind in (MEMBER, CURRENT, TARGET, REGEX), found  # only trailing tags of the value may be missing
        assert found == value


@given(st.sampled_from([kind for kind, _, _ in VALUES]), st.binary(max_size=60))
def test_no_bytes_do_harm(kind: int, raw: bytes) -> None:
    for data in (raw, b"\0\0" + raw):
        try:
            decode_consumer_value(kind, data)
        except BadCoordinatorRecord:
            pass


def test_lengths_that_do_not_match_are_refused() -> None:
    raw = bytes.fromhex(f"0000 00000005 00000004 00 02 {ID} 02 00000007 01 00 01 01 01 00")
    with pytest.raises(BadCoordinatorRecord, match="expected 1 assignment epochs, found 0"):
        decode_consumer_value(CURRENT, raw)
    with pytest.raises(BadCoordinatorRecord, match="expected 8 bytes"):
        decode_consumer_value(GROUP, bytes.fromhex("0000 00000007 01 00 01 ff"))
    with pytest.raises(ValueError, match="at most 32767"):
        encode_consumer_key(ConsumerKey(GROUP, "g" * 40_000))
