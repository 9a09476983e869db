"""Raft messages: what is encoded is decoded, and nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.ids import NodeId
from tidelog.proto.network import BadFrame
from tidelog.proto.raft_messages import (
    Append,
    AppendResult,
    Hello,
    HelloAnswer,
    LogEntry,
    PreVoteRequest,
    PreVoteResult,
    RaftMessage,
    SnapshotPart,
    SnapshotResult,
    VoteGranted,
    VoteRequest,
    decode_frame,
    decode_hello,
    decode_hello_answer,
    encode_hello,
    encode_hello_answer,
    encode_message,
    join_messages,
)

number = st.integers(0, 2**63)
crc = st.integers(0, 2**32 - 1)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    previous = draw(st.integers(0, 2**40))
    terms = sorted(draw(st.lists(st.integers(0, 50), max_size=5)))
    entries = tuple(LogEntry(previous + 1 + at, term, draw(st.binary(max_size=40))) for at, term in enumerate(terms))
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
)


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
    hello = Hello(1, "cluster", NodeId(3), NodeId(1), (NodeId(1), NodeId(2), NodeId(3)))
    assert decode_hello(encode_hello(hello)) == hello
    assert decode_hello_answer(encode_hello_answer(HelloAnswer("no"))) == HelloAnswer("no")
    with pytest.raises(BadFrame, match="expected a RaftHello, found 2 bytes"):
        decode_hello(b"\xff\xff")


@pytest.mark.parametrize("terms", [(3, 2), (1,), (9,)])
def test_terms_that_fall_or_pass_the_leaders_are_refused(terms: tuple[int, ...]) -> None:
    entries = tuple(LogEntry(6 + at, term, b"") for at, term in enumerate(terms))
    frame = b"".join(join_messages([encode_message(Append(8, 0, 5, 2, entries, notice=False))]))
    with pytest.raises(BadFrame, match="expected terms that rise to at most 8"):
        decode_frame(frame)


def test_a_message_of_no_known_kind_is_refused() -> None:
    with pytest.raises(BadFrame, match="of a known kind"):
        decode_frame(b"\x0a\x00")
