"""``./dev fuzz``: sends hostile frames and opens many connections at a Kafka port of a node of our own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tidelog.chaos.fuzz import connections, fuzz_run
from tidelog.chaos.fuzz.fuzzing import BATCH_FRAMES
from tidelog.chaos.fuzz.logins import LoginFuzz
from tidelog.chaos.fuzz.watched_node import NodeGone


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if the node held, 1 if not (its files are kept then), 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="./dev fuzz", description="Test that a Kafka port survives random frames and many connections."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    frames = kinds.add_parser("kafka", help="send random and damaged frames; a witness client must not notice")
    frames.add_argument("--inputs", type=int, default=200_000, metavar="N", help="number of frames (200,000)")
    frames.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the frames (1)")
    frames.add_argument("--connections", type=int, default=32, metavar="N", help="concurrent connections (32)")
    frames.add_argument(
        "--first-batch", type=int, default=0, metavar="N", help=f"start at this batch of {BATCH_FRAMES} frames (0)"
    )
    frames.add_argument("--login", action="store_true", help="use a listener that requires a login, without logging in")
    crowd = kinds.add_parser("connections", help="hold idle, half-open, slow and busy connections; check memory")
    crowd.add_argument("--idle", type=int, default=connections.IDLE, metavar="N")
    crowd.add_argument("--busy", type=int, default=connections.BUSY, metavar="N")
    crowd.add_argument("--slow", type=int, default=connections.SLOW, metavar="N")
    crowd.add_argument("--half-open", type=int, default=connections.HALF_OPEN, metavar="N")
    crowd.add_argument("--seconds", type=float, default=connections.HOLD_S, metavar="S", help="how long to hold each")
    guests = kinds.add_parser("login", help="feed damaged logins to the code that handles logins; none may succeed")
    guests.add_argument("--inputs", type=int, default=200_000, metavar="N", help="number of messages (200,000)")
    guests.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the messages (1)")
    guests.add_argument("--first", type=int, default=0, metavar="N", help="start at this conversation (0)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the node is stopped on exit
    directory = Path(tempfile.mkdtemp(prefix="tidelog-fuzz-"))
    try:
        faults = {"kafka": _frames, "connections": _crowd, "login": _logins}[options.kind](directory, options)
    except NodeGone as gone:
        faults = [f"the node ended: {gone}"]
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if not faults:
        shutil.rmtree(directory, ignore_errors=True)
        print("the logins held" if options.kind == "login" else "the node held")
        return 0
    for fault in faults:
        print(f"FAULT  {fault}", file=sys.stderr)
    print(f"the node's files: {directory}", file=sys.stderr)
    return 1


def _say(line: str) -> None:
    print(line, flush=True)


def _frames(directory: Path, options: argparse.Namespace) -> list[str]:
    report = fuzz_run.run(
        directory,
        options.inputs,
        options.seed,
        connections=options.connections,
        first_batch=options.first_batch,
        say=_say,
        login=options.login,
    )
    tally, seen = report.tally, report.testimony
    _say(
        f"seed {report.seed}: {tally.inputs:,} inputs in {report.seconds:,.0f} s, {tally.batches:,} batches over "
        f"{tally.connections:,} connections: {tally.answered:,} answered, {tally.closed:,} closed at, "
        f"{tally.stalled:,} left waiting, {tally.rough_ends:,} rough ends"
    )
    for name, seen_then in (("before", report.before), ("warm", report.warm), ("after", report.after)):
        memory = f"{seen_then.memory_bytes / 1e6:6.1f} MB"
        held = seen_then.open
        _say(
            f"{name:<7} {memory}, {seen_then.threads} threads; open: {held.sockets} sockets, {held.kept} files of its "
            f"own, {held.deleted} deleted ones, {held.others} others"
        )
    cpu_s = report.after.cpu_s - report.before.cpu_s
    _say(
        f"peak    {report.memory_peak_bytes / 1e6:6.1f} MB; {cpu_s:,.0f} s of processor, at most "
        f"{report.longest_hold_s * 1000:,.0f} ms of it in one hold of the event loop"
    )
    _say(
        f"witness: {seen.sent:,} sent, {seen.acknowledged:,} acknowledged, {seen.read:,} read in order, "
        f"slowest acknowledgement {seen.slowest_ms:,.0f} ms"
    )
    return report.faults


def _crowd(directory: Path, options: argparse.Namespace) -> list[str]:
    report = connections.run(
        directory,
        idle=options.idle,
        busy=options.busy,
        slow=options.slow,
        half_open=options.half_open,
        hold_s=options.seconds,
        say=_say,
    )
    seen = report.testimony
    _say(
        f"start {report.start.memory_bytes / 1e6:.0f} MB, end {report.end.memory_bytes / 1e6:.0f} MB; witness: "
        f"{seen.sent:,} sent, {seen.read:,} read in order, slowest acknowledgement {seen.slowest_ms:,.0f} ms"
    )
    return report.faults


def _logins(directory: Path, options: argparse.Namespace) -> list[str]:
    logging.disable(logging.ERROR)  # a node logs strangers, and here are many
    report = asyncio.run(LoginFuzz(directory, options.seed).run(options.inputs, options.first, _say))
    ended = ", ".join(f"{count:,} {how}" for how, count in report.ended.most_common())
    _say(
        f"seed {options.seed}: {report.inputs:,} inputs in {report.seconds:,.0f} s, {report.conversations:,} "
        f"conversations: {ended}; {report.let_in:,} let in"
    )
    _say(
        f"longest hold of the event loop {report.longest_hold_s * 1000:.2f} ms of processor (conversation "
        f"{report.slowest}); {report.warm_bytes / 1e6:.0f} MB warm, {report.end_bytes / 1e6:.0f} MB at the end"
    )
    return report.faults
