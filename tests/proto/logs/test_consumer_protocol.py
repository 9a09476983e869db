"""Subscriptions and assignments as Kafka writes them."""

from __future__ import annotations

import aiokafka.coordinator.protocol as aiokafka_protocol
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.assignors import Assignment, Subscription
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.consumer_protocol import (
    VERSION_NEWEST,
    BadConsumerProtocol,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

ORDERS = TopicPartition("orders", 1)
FLIGHTS = (TopicPartition("flights", 0), TopicPartition("flights", 2))

# Written by ConsumerProtocol of Kafka's own kafka-clients 4.1.0 (tests/golden/generate/GoldenAssignments.java,
# "protocol"), by version.
PLAIN_SUBSCRIPTION = (
    "00000000000100066f7264657273ffffffff",
    "00010000000100066f7264657273ffffffff00000000",
    "00020000000100066f7264657273ffffffff00000000ffffffff",
    "00030000000100066f7264657273ffffffff00000000ffffffffffff",
)
_FULL_TOPICS = "000000030008646f6e6ec3a965730007666c696768747300066f72646572730000000400000007"
_FULL_OWNED = "000000020007666c696768747300000002000000000000000200066f72646572730000000100000001"
FULL_SUBSCRIPTION = (
    f"0000{_FULL_TOPICS}",
    f"0001{_FULL_TOPICS}{_FULL_OWNED}",
    f"0002{_FULL_TOPICS}{_FULL_OWNED}00000007",
    f"0003{_FULL_TOPICS}{_FULL_OWNED}0000000700067261636b2d61",
)
EMPTY_SUBSCRIPTION = (
    "000000000000ffffffff",
    "000100000000ffffffff00000000",
    "000200000000ffffffff00000000ffffffff",
    "000300000000ffffffff00000000ffffffffffff",
)
PLAIN_ASSIGNMENT = "0000000100066f7264657273000000020000000000000001ffffffff"
FULL_ASSIGNMENT = (
    "0000000300066f72646572730000000200000002000000010007666c6967687473000000010000000000"
    "08646f6e6ec3a96573000000010000000500000003010203"
)
EMPTY_ASSIGNMENT = "00000000ffffffff"

PLAIN = Subscription(("orders",))
FULL = Subscription(("orders", "flights", "données"), b"\0\0\0\7", (ORDERS, FLIGHTS[1], FLIGHTS[0]), 7, "rack-a")
READ_BACK = (  # what each version has room for
    Subscription(("données", "flights", "orders"), b"\0\0\0\7"),
    Subscription(("données", "flights", "orders"), b"\0\0\0\7", (*FLIGHTS, ORDERS)),
    Subscription(("données", "flights", "orders"), b"\0\0\0\7", (*FLIGHTS, ORDERS), 7),
    Subscription(("données", "flights", "orders"), b"\0\0\0\7", (*FLIGHTS, ORDERS), 7, "rack-a"),
)
GIVEN_OUT = (
    TopicPartition("orders", 2),
    TopicPartition("flights", 0),
    ORDERS,
    TopicPartition("données", 5),
)
GIVEN_OUT_BY_TOPIC = (GIVEN_OUT[0], GIVEN_OUT[2], GIVEN_OUT[1], GIVEN_OUT[3])
EVERY_GOLDEN = [
    *PLAIN_SUBSCRIPTION,
    *FULL_SUBSCRIPTION,
    *EMPTY_SUBSCRIPTION,
    *(f"{version:04x}{text}" for version in range(4) for text in (PLAIN_ASSIGNMENT, FULL_ASSIGNMENT, EMPTY_ASSIGNMENT)),
]


# --- Golden bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(VERSION_NEWEST + 1))
def test_subscriptions_are_written_as_kafka_writes_them(version: int) -> None:
    assert encode_subscription(PLAIN, version).hex() == PLAIN_SUBSCRIPTION[version]
    assert encode_subscription(FULL, version).hex() == FULL_SUBSCRIPTION[version]
    assert encode_subscription(Subscription(()), version).hex() == EMPTY_SUBSCRIPTION[version]


@pytest.mark.parametrize("version", range(VERSION_NEWEST + 1))
def test_kafkas_subscriptions_are_read(version: int) -> None:
    assert decode_subscription(bytes.fromhex(PLAIN_SUBSCRIPTION[version])) == PLAIN
    assert decode_subscription(memoryview(bytes.fromhex(FULL_SUBSCRIPTION[version]))) == READ_BACK[version]
    assert decode_subscription(bytes.fromhex(EMPTY_SUBSCRIPTION[version])) == Subscription(())


@pytest.mark.parametrize("version", range(VERSION_NEWEST + 1))
def test_assignments_are_written_and_read_as_kafka_does(version: int) -> None:
    zero_and_one = (TopicPartition("orders", 0), ORDERS)
    for partitions, user_data, read, golden in (
        (zero_and_one, b"", zero_and_one, PLAIN_ASSIGNMENT),
        (GIVEN_OUT, b"\1\2\3", GIVEN_OUT_BY_TOPIC, FULL_ASSIGNMENT),
        ((), b"", (), EMPTY_ASSIGNMENT),
    ):
        written = encode_assignment(partitions, user_data, version)
        assert written.hex() == f"{version:04x}{golden}"
        assert decode_assignment(written) == Assignment(read, user_data)


def test_versions_are_the_newest_unless_named() -> None:
    assert encode_subscription(FULL).hex() == FULL_SUBSCRIPTION[VERSION_NEWEST]
    assert encode_assignment(GIVEN_OUT, b"\1\2\3").hex() == f"{VERSION_NEWEST:04x}{FULL_ASSIGNMENT}"


def test_aiokafka_and_we_read_one_another() -> None:
    said = aiokafka_protocol.ConsumerProtocolMemberMetadata(0, ["orders", "flights"], b"x")
    assert decode_subscription(said.encode()) == Subscription(("orders", "flights"), b"x")
    read = aiokafka_protocol.ConsumerProtocolMemberMetadata.decode(encode_subscription(FULL, 3))
    assert (read.version, read.subscription, read.user_data) == (3, ["données", "flights", "orders"], b"\0\0\0\7")
    given_out = aiokafka_protocol.ConsumerProtocolMemberAssignment(0, [("orders", [1]), ("flights", [0, 2])], b"")
    assert decode_assignment(given_out.encode()) == Assignment((ORDERS, *FLIGHTS))
    got = aiokafka_protocol.ConsumerProtocolMemberAssignment.decode(encode_assignment(GIVEN_OUT))
    assert [tuple(partition) for partition in got.partitions()] == list(GIVEN_OUT_BY_TOPIC)


# --- Leniency ----------------------------------------------------------------------------------------------


def test_a_newer_version_is_read_as_far_as_known() -> None:
    newer = bytes.fromhex("0007" + FULL_SUBSCRIPTION[3][4:] + "cafe")
    assert decode_subscription(newer) == READ_BACK[3]
    assert decode_assignment(bytes.fromhex("7fff" + FULL_ASSIGNMENT + "cafe")).user_data == b"\1\2\3"


def test_an_empty_rack_is_none() -> None:
    """ConsumerProtocol.deserializeSubscription."""
    assert decode_subscription(bytes.fromhex(PLAIN_SUBSCRIPTION[3][:-4] + "0000")).rack_id is None


# --- What is no subscription and no assignment ---------------------------------------------------------------


@pytest.mark.parametrize("golden", EVERY_GOLDEN[:12])
def test_a_subscription_cut_short_is_refused(golden: str) -> None:
    whole = bytes.fromhex(golden)
    for size in range(len(whole)):
        with pytest.raises(BadConsumerProtocol, match="expected"):
            decode_subscription(whole[:size])


@pytest.mark.parametrize("golden", EVERY_GOLDEN[12:])
def test_an_assignment_cut_short_is_refused(golden: str) -> None:
    whole = bytes.fromhex(golden)
    for size in range(len(whole)):
        with pytest.raises(BadConsumerProtocol, match="expected"):
            decode_assignment(whole[:size])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("ffff00000000ffffffff", "a version of 0 or more, found -1"),
        ("0000ffffffffffffffff", "found -1"),
        ("00007fffffff0001610000", "0 to 2 topics in the bytes that follow, found 2147483647"),
        ("000000000001ffff", "expected a topic, found null"),
        ("000000000001fffe", "a length of a topic of -1 or more, found -2"),
        ("0000000000010002c328ffffffff", "expected UTF-8 in a topic"),
        ("000000000000fffffffe", "a length of the user data of -1 or more, found -2"),
        ("00000000000000000005aabb", "expected 5 bytes for the user data at 10, found 2"),
        ("000100000000ffffffff0000000100016100000003", "0 to 0 partitions in the bytes that follow, found 3"),
        ("000100000000ffffffff0000000100016100000001fffffffe", "partitions of 0 or more, found -2 of 'a'"),
    ],
)
def test_a_subscription_that_is_none_is_refused_with_the_reason(data: str, why: str) -> None:
    with pytest.raises(BadConsumerProtocol, match=why):
        decode_subscription(bytes.fromhex(data))


def test_no_bytes_are_no_assignment() -> None:
    with pytest.raises(BadConsumerProtocol, match="expected 2 bytes for the version at 0, found 0"):
        decode_assignment(b"")


def test_what_the_bytes_cannot_hold_is_refused() -> None:
    for version in (-1, VERSION_NEWEST + 1):
        with pytest.raises(BadConsumerProtocol, match="a version from 0 to 3"):
            encode_subscription(PLAIN, version)
        with pytest.raises(BadConsumerProtocol, match="a version from 0 to 3"):
            encode_assignment((), version=version)
    with pytest.raises(BadConsumerProtocol, match="at most 32767 bytes, found 32768"):
        encode_subscription(Subscription(("é" * 0x4000,)))
    with pytest.raises(BadConsumerProtocol, match="UTF-8"):
        encode_subscription(Subscription(("\ud800",)))
    for number in (-1, 1 << 31):
        with pytest.raises(BadConsumerProtocol, match="a partition from 0"):
            encode_assignment((TopicPartition("t", number),))
    with pytest.raises(BadConsumerProtocol, match="generation_id"):
        encode_subscription(Subscription(("t",), generation_id=1 << 31))


# --- Properties ------------------------------------------------------------------------------------------------

topics = st.text(max_size=20)
partitions = st.lists(st.builds(TopicPartition, topics, st.integers(0, 0x7FFFFFFF)), max_size=20).map(tuple)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(topics, max_size=10).map(tuple),
    user_data=st.binary(max_size=20),
    owned=partitions,
    generation_id=st.integers(-1, 0x7FFFFFFF),
    rack_id=st.none() | st.text(min_size=1, max_size=10),
)


@settings(max_examples=150)
@given(subscriptions)
def test_a_subscription_comes_back_sorted(said: Subscription) -> None:
    read = decode_subscription(encode_subscription(said))
    assert read.topics == tuple(sorted(said.topics))
    assert read.owned == tuple(sorted(said.owned))
    assert (read.user_data, read.generation_id, read.rack_id) == (said.user_data, said.generation_id, said.rack_id)
    assert encode_subscription(read) == encode_subscription(said)


@settings(max_examples=150)
@given(partitions, st.binary(max_size=20), st.integers(0, VERSION_NEWEST))
def test_an_assignment_comes_back(given_out: tuple[TopicPartition, ...], user_data: bytes, version: int) -> None:
    read = decode_assignment(encode_assignment(given_out, user_data, version))
    assert sorted(read.partitions) == sorted(given_out)
    assert read.user_data == user_data


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray.fromhex(draw(st.sampled_from(EVERY_GOLDEN)))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@settings(max_examples=500)
@given(st.binary(max_size=80) | damaged())
def test_only_one_error_comes_out_of_a_reader(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except BadConsumerProtocol as error:
            assert str(error).startswith("expected")
