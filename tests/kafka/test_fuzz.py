"""A few thousand hostile frames, and a few hundred connections: the short forms of ``./dev fuzz``."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.fuzz import connections, fuzz_run
from tidelog.chaos.fuzz.captured import captured_requests
from tidelog.chaos.fuzz.frames import FrameSource
from tidelog.chaos.fuzz.fuzzing import PortSilent, fuzz
from tidelog.chaos.fuzz.loop_probe import LoopProbe
from tidelog.chaos.fuzz.open_files import OpenFiles, kinds
from tidelog.proto.kafka.headers import read_request_header
from tidelog.proto.kafka.messages import decode_request, encode_request
from tidelog.proto.kafka.wire import ITEMS_MAX, TAGS_MAX, BadMessage
from tidelog.testing.ports import free_ports

SERVED = {0: (3, 12), 1: (4, 12), 3: (0, 12), 18: (0, 4), 19: (2, 7), 32: (1, 4)}


def test_hostile_frames_end_no_node_and_a_witness_notices_nothing(tmp_path: Path) -> None:
    report = fuzz_run.run(tmp_path, 4_000, seed=20)
    assert report.faults == []
    assert report.tally.inputs >= 4_000
    assert report.tally.answered > 1_000
    assert report.tally.closed > 100
    assert report.testimony.read > 10
    assert 0 < report.longest_hold_s <= fuzz_run.HOLD_S_MAX


def test_hostile_frames_before_a_login_end_no_node_either(tmp_path: Path) -> None:
    report = fuzz_run.run(tmp_path, 1_500, seed=21, login=True)
    assert report.faults == []
    assert report.tally.inputs >= 1_500
    assert report.tally.closed > 500, "nobody logs in"
    assert report.tally.answered > 50, "versions, handshakes, failed logins"
    assert report.testimony.read > 10


SLOW_SERVER = """
import asyncio, time
async def serve(reader, writer):
    while (asked := await reader.read(64)):
        until_s = time.thread_time() + (0.05 if asked == b"hold" else 0)
        while time.thread_time() < until_s:
            pass
        writer.write(b"\\0\\0\\0\\4done")
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def test_the_probe_notices_a_request_that_holds_the_loop() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW_SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            deadline = time.monotonic() + 60
            with (
                LoopProbe("127.0.0.1", port, server.pid) as probe,
                socket.create_connection(("127.0.0.1", port), 30) as hostile,
            ):
                assert probe.longest_s < 0.05
                while probe.longest_s < 0.05 and time.monotonic() < deadline:
                    hostile.sendall(b"hold")
                    assert hostile.recv(64)
            assert probe.longest_s >= 0.05
        finally:
            server.kill()


def test_crowds_of_connections_cost_little(tmp_path: Path) -> None:
    report = connections.run(tmp_path, idle=300, busy=50, slow=20, half_open=50, hold_s=1.0)
    assert report.faults == []
    assert [phase.connections for phase in report.phases] == [300, 50, 20, 50]
    assert report.phases[-1].requests >= 50


def test_some_frames_go_on_with_a_fetch_session() -> None:
    batches = (
        FrameSource(3, {1: (12, 12)}, pool_frames=500, sessions=[77_777]).batch(number, 50) for number in range(4)
    )
    asked: Counter[tuple[int, bool]] = Counter()
    for frame in (frame for batch in batches for frame in batch.frames):
        try:
            found = decode_request(1, 12, memoryview(frame)[4 + read_request_header(memoryview(frame)[4:]).end :])
        except BadMessage:
            continue
        if found.session_id == 77_777:
            asked[found.session_epoch, bool(found.forgotten_topics_data)] += 1
    assert all(asked[epoch, forgets] for epoch in (-1, 0, 1, 2) for forgets in (False, True)), asked


def test_a_batch_of_frames_follows_from_the_seed_and_its_number() -> None:
    one = FrameSource(3, SERVED, pool_frames=200).batch(17, 50)
    assert FrameSource(3, SERVED, pool_frames=200).batch(17, 50) == one
    assert FrameSource(4, SERVED, pool_frames=200).batch(17, 50) != one
    for index, frame in enumerate(one.frames, 1):
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert int.from_bytes(frame[8:12], "big") == index


def test_frames_have_tagged_fields_and_counts_beyond_the_bounds() -> None:
    """A refusal at a bound shows that the bound is reached."""
    source = FrameSource(6, SERVED, pool_frames=4_000)
    refused: Counter[str] = Counter()
    for frame in (frame for number in range(200) for frame in source.batch(number, 50).frames):
        try:
            header = read_request_header(memoryview(frame)[4:])
            if header.api_key not in (0, 1):
                decode_request(header.api_key, header.api_version, memoryview(frame)[4 + header.end :])
        except BadMessage as bad:
            refused[str(bad).partition(", found")[0]] += 1
    assert refused[f"expected at most {TAGS_MAX} tagged fields in a structure"] > 20
    assert refused[f"expected at most {ITEMS_MAX} array items and tagged fields in a message"] > 0


async def test_a_port_where_nobody_listens_any_more_is_told() -> None:
    (port,) = free_ports(1, random.Random())
    source = FrameSource(1, SERVED, pool_frames=200)
    with pytest.raises(ExceptionGroup) as trouble:
        await fuzz("127.0.0.1", port, source, 100, connections=1, connect_timeout_s=0.2)
    assert trouble.group_contains(PortSilent, match="batches under way: 0")


async def test_an_answer_that_nobody_asked_for_is_a_fault() -> None:
    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\0\0\0\4\0\0\0\2" * 2)
        while await reader.read(65536):
            continue
        writer.close()
        closed.set()

    closed = asyncio.Event()

    server = await asyncio.start_server(answer_twice, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(ExceptionGroup, match="TaskGroup") as trouble:
            await fuzz("127.0.0.1", port, FrameSource(1, SERVED, pool_frames=200), 100, connections=1)
        await closed.wait()
    finally:
        server.close()
        await server.wait_closed()
    assert trouble.group_contains(Exception, match="expected an answer after 2, found one to 2")


def test_captured_requests_are_read_and_written_back_byte_for_byte() -> None:
    """Requests that four clients really sent, Java's among them: the codec against bytes of others."""
    seen = set()
    for frame in captured_requests():
        header = read_request_header(memoryview(frame))
        seen.add(header.api_key)
        if header.api_key in (0, 1):
            continue  # read by hand elsewhere
        body = frame[header.end :]
        payload = decode_request(header.api_key, header.api_version, body)
        again = encode_request(header.api_key, header.api_version, plain(payload))
        assert body.startswith(again), (header.api_key, header.api_version)
        assert len(body) - len(again) in (0, 3), "librdkafka leaves three bytes behind a request for all topics"
    assert len(seen) > 30


def plain(value: object) -> Any:
    """Named tuples as the mappings that the encoder takes."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return value


def test_open_files_are_told_apart() -> None:
    own = [f"/data/node-1/data/t-0/{number:020d}.log" for number in range(3)]
    links = [*own, "socket:[12]", "socket:[13]", "anon_inode:[eventpoll]", "pipe:[5]", "/dev/null", own[0]]
    links += ["/data/node-1/data/u-0/00000000000000000000.log (deleted)", "/data/node-11/data/t-0/1.log"]
    assert kinds(links, "/data/node-1") == OpenFiles(sockets=2, kept=3, deleted=1, others=5)
    assert kinds(links, "/data/node-1").total == len(links)


def test_a_node_that_holds_on_to_files_is_at_fault() -> None:
    before = OpenFiles(sockets=3, kept=20, deleted=0, others=9)
    grown = replace(before, kept=500)
    assert fuzz_run.open_too_many(before, grown) == [], "files of topics that frames made"
    for kind, most in (("sockets", 4), ("deleted", 4), ("others", 4)):
        at_most = replace(before, **{kind: getattr(before, kind) + most})
        assert fuzz_run.open_too_many(before, at_most) == []
        more = replace(before, **{kind: getattr(before, kind) + most + 1})
        assert len(fuzz_run.open_too_many(before, more)) == 1
