"""Raft messages: encoded ones decode to the same, and nothing else decodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import Voter, VoterSet
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.network import BadFrame
from tidelog.proto.transport.raft_messages import (
    ENTRIES_MAX,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    MESSAGES_MAX,
    Append,
    AppendResult,
    Entry,
    Hello,
    HelloAnswer,
    PreVoteRequest,
    PreVoteResult,
    RaftMessage,
    SnapshotPart,
    SnapshotResult,
    VoteGranted,
    VoteRequest,
    Voters,
    VoterStanding,
    decode_frame,
    decode_hello,
    decode_hello_answer,
    encode_hello,
    encode_hello_answer,
    encode_message,
    join_messages,
)

DIRECTORY = DirectoryId(bytes(range(16)))
VOTERS = VoterSet((Voter(NodeId(1), DIRECTORY), Voter(NodeId(3), DirectoryId(bytes(16)))), (NodeId(2),))
RELEASED: list[tuple[RaftMessage, str]] = [
    (
        Append(7, 40, 41, 6, (Entry(6, b"one"), Entry(7, b"")), notice=False),
        "0a1508071028182920062a07080612036f6e652a020807",
    ),
    (Append(7, 40, 41, 6, (), notice=True), "0a0a08071028182920063001"),
    (AppendResult(7, 44, success=True, reset=False), "12060807102c1801"),
    (AppendResult(2**63, 1, success=False, reset=True), "120f088080808080808080800110012001"),
    (VoteRequest(8, 43, 7), "1a060808102b1807"),
    (VoteGranted(8), "22020808"),
    (VoteGranted(0), "2200"),
    (PreVoteRequest(9, 43, 7), "2a060809102b1807"),
    (PreVoteResult(9, 8, granted=True), "3206080910081801"),
    (
        SnapshotPart(9, 40, 30, 5, 0xDEADBEEF, 3_000_000_000, 65536, b"state"),
        "3a1f08091028181e200528effdb6f50d3080bcc1960b3880800442057374617465",
    ),
    (SnapshotResult(9, 30, 5, 0xDEADBEEF, 65541, gap=True), "42120809101e180520effdb6f50d288580043001"),
    (
        Voters(VOTERS),
        "4a3f0a3d00020001000100000000000000000102030405060708090a0b0c0d0e0f0300000000000000"
        "000000000000000000000000000000000200000000000000",
    ),
]
"""What the codec wrote that was packed by hand, byte for byte."""

number = st.integers(0, 2**63)
crc = st.integers(0, 2**32 - 1)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    previous = draw(st.integers(0, 2**40))
    terms = sorted(draw(st.lists(st.integers(0, 50), max_size=5)))
    entries = tuple(Entry(term, draw(st.binary(max_size=40))) for term in terms)
    before = draw(st.integers(0, terms[0] if terms else 50))
    return Append(draw(st.integers(50, 99)), draw(number), previous, before, entries, draw(st.booleans()))


messages: st.SearchStrategy[RaftMessage] = st.one_of(
    appends(),
    st.builds(AppendResult, number, number, st.booleans(), st.booleans()),
    st.builds(VoteRequest, number, number, number),
    st.builds(VoteGranted, number),
    st.builds(PreVoteRequest, number, number, number),
    st.builds(PreVoteResult, number, number, st.booleans()),
    st.builds(SnapshotPart, number, number, number, number, crc, number, number, st.binary(max_size=300)),
    st.builds(SnapshotResult, number, number, number, crc, number, st.booleans()),
    st.just(Voters(VOTERS)),
)


@pytest.mark.parametrize(("message", "released"), RELEASED)
def test_messages_are_the_bytes_that_were_released(message: RaftMessage, released: str) -> None:
    assert encode_message(message).hex() == released
    assert decode_frame(b"".join(join_messages([bytes.fromhex(released)]))) == [message]


@given(st.lists(messages, max_size=6))
def test_frames_carry_messages_in_order(sent: list[RaftMessage]) -> None:
    assert decode_frame(b"".join(join_messages([encode_message(message) for message in sent]))) == sent


@settings(max_examples=300)
@given(
    st.one_of(st.binary(max_size=80), st.lists(messages, min_size=1, max_size=3).flatmap(lambda sent: mangled(sent)))
)
def test_garbage_is_refused_or_read_as_messages(data: bytes) -> None:
    try:
        found = decode_frame(data)
    except BadFrame:
        return
    assert all(type(message) in RaftMessage.__args__ for message in found)


def mangled(sent: list[RaftMessage]) -> st.SearchStrategy[bytes]:
    whole = bytearray(b"".join(join_messages([encode_message(message) for message in sent])))

    def flip(at: int, bit: int) -> bytes:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        return bytes(flipped)

    return st.builds(flip, st.integers(0, len(whole) - 1), st.integers(0, 7))


def test_hello() -> None:
    hello = Hello(2, "cluster", NodeId(3), NodeId(1), (NodeId(1), NodeId(2), NodeId(3)), DIRECTORY)
    released = "08021207636c7573746572180320012a030102033210000102030405060708090a0b0c0d0e0f"
    assert encode_hello(hello).hex() == released
    assert decode_hello(bytes.fromhex(released)) == hello
    with pytest.raises(BadFrame, match="expected a RaftHello, found 2 bytes"):
        decode_hello(b"\xff\xff")


@pytest.mark.parametrize(
    ("answer", "released"),
    [
        (HelloAnswer("no", DIRECTORY, VoterStanding.FOUNDED), "0a026e6f1210000102030405060708090a0b0c0d0e0f1802"),
        (HelloAnswer("", DIRECTORY, VoterStanding.OLD), "1210000102030405060708090a0b0c0d0e0f1801"),
        (HelloAnswer(""), "121000000000000000000000000000000000"),
    ],
)
def test_answers_to_a_hello(answer: HelloAnswer, released: str) -> None:
    assert encode_hello_answer(answer).hex() == released
    assert decode_hello_answer(bytes.fromhex(released)) == answer


def test_what_a_field_cannot_mean_is_refused() -> None:
    with pytest.raises(BadFrame, match="expected a RaftHelloAnswer, found 9 is not a valid VoterStanding"):
        decode_hello_answer(b"\x18\x09")
    with pytest.raises(BadFrame, match="voter"):
        decode_frame(b"".join(join_messages([b"\x4a\x00"])))


@pytest.mark.parametrize("terms", [(3, 2), (1,), (9,)])
def test_terms_that_fall_or_pass_the_leaders_are_refused(terms: tuple[int, ...]) -> None:
    entries = tuple(Entry(term, b"") for term in terms)
    frame = b"".join(join_messages([encode_message(Append(8, 0, 5, 2, entries, notice=False))]))
    with pytest.raises(BadFrame, match="expected terms that rise to at most 8"):
        decode_frame(frame)


def test_a_message_of_no_known_kind_is_refused() -> None:
    with pytest.raises(BadFrame, match="of a known kind"):
        decode_frame(b"\x0a\x00")


def test_a_frame_is_bounded_before_its_messages_become_objects() -> None:
    """A megabyte of empty messages took 1.5 s of the event loop."""
    vote = encode_message(VoteGranted(0))
    assert len(decode_frame(b"".join(join_messages([vote] * MESSAGES_MAX)))) == MESSAGES_MAX
    with pytest.raises(BadFrame, match=f"at most {MESSAGES_MAX} Raft messages in a frame, found {MESSAGES_MAX + 1}"):
        decode_frame(b"".join(join_messages([vote] * (MESSAGES_MAX + 1))))
    halves = [b"\x0a" + _sized(b"\x2a\0" * (ENTRIES_MAX // 2 + extra)) for extra in (0, 1)]
    with pytest.raises(BadFrame, match=f"at most {ENTRIES_MAX} entries in a Raft frame, found {ENTRIES_MAX + 1}"):
        decode_frame(b"".join(join_messages(halves)))
    with pytest.raises(BadFrame, match="expected a Raft frame of at most"):
        decode_frame(bytes(FRAME_BYTES_MAX + 1))


def test_a_hello_that_names_a_crowd_is_not_read() -> None:
    hello = Hello(2, "c", NodeId(1), NodeId(2), (NodeId(1),) * HELLO_BYTES_MAX, DIRECTORY)
    with pytest.raises(BadFrame, match=f"expected a hello of at most {HELLO_BYTES_MAX} bytes"):
        decode_hello(encode_hello(hello))


def _sized(data: bytes) -> bytes:
    head = bytearray()
    write_uvarint(head, len(data))
    return bytes(head) + data
