"""Bytes from a socket into frames: whose memory a frame is."""

from __future__ import annotations

import socket
import struct

import pytest

from tidelog.broker.kafka.wire.incoming import SHARED_BYTES, Incoming, shared_buffer


@pytest.mark.parametrize("size", [100, SHARED_BYTES - 4, SHARED_BYTES - 3, 4 * SHARED_BYTES])
def test_a_frame_larger_than_the_shared_buffer_gets_memory_of_its_own(size: int) -> None:
    """Put together from pieces of the shared one, each piece would copy all that came before it."""
    content = bytes(n % 251 for n in range(size))
    here, there = socket.socketpair()
    with here, there:
        shared = shared_buffer()
        incoming = Incoming(1 << 20, 1 << 20, shared)
        frame = None
        wire = struct.pack(">i", size) + content
        for at in range(0, len(wire), 10_000):
            there.sendall(wire[at : at + 10_000])
            assert frame is None
            incoming.receive(here)
            frame = incoming.next_frame()
            if frame is None:
                incoming.keep()
        assert frame is not None
        assert bytes(frame) == content
        assert (isinstance(frame.obj, bytearray) and frame.obj is not shared.obj) == (size + 4 > SHARED_BYTES)
