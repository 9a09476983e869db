"""Messages: search, tail, show one whole, produce one."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

from tidelog import OffsetSpec, TopicPartition
from tidelog.console.reading.filters import MODES, TEXT, Filter, PatternWrong, finder
from tidelog.console.reading.rows import WHOLE
from tidelog.console.reading.scan import ROWS_MAX, Fetches, Limits, Scan
from tidelog.console.routes import Call, Route, number
from tidelog.console.schemas.view import View
from tidelog.console.web.messages import Wrong, event

PLACES: Final = ("newest", "oldest", "offset", "time", "go-on")
TAIL_S: Final = 1.0
TAIL_ROWS_MAX: Final = 50
"""How many rows to show per second. Further rows are only counted."""


def filter_of(call: Call) -> Filter:
    """Return the filter of a call. Raises :class:`Wrong`."""
    mode = call.choice("mode", MODES, TEXT)
    found = {}
    for name in ("key", "value", "header"):
        try:
            found[name] = finder(call.text(name), mode)
        except PatternWrong as error:
            raise Wrong(f"{name}: {error}") from None
    since = call.number("since", -1, -1) if call.text("since") else None
    until = call.number("until", -1, -1) if call.text("until") else None
    return Filter(found["key"], found["value"], found["header"], since, until)


def _view(call: Call) -> View:
    return call.desk.messages.view(call.names["topic"], call.session.user)


async def _partitions(call: Call) -> tuple[list[TopicPartition], list[int]]:
    """Return the requested partitions, by number, or all: those that have a leader, and those that have none."""
    name = call.names["topic"]
    (found,) = await call.desk.admin._inner.describe_topics([name])
    wanted = call.text("partition")
    chosen = [one for one in found.partitions if not wanted or str(one.partition) == wanted]
    if not chosen:
        raise Wrong(f"partition: expected 0 to {len(found.partitions) - 1}, found {wanted[:20]!r}")
    led = [TopicPartition(name, one.partition) for one in chosen if one.leader >= 0]
    return led, [one.partition for one in chosen if one.leader < 0]


async def _offsets(call: Call, places: list[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    if not places:
        raise Wrong("no partition of that topic has a leader", 503)
    found = await call.desk.admin._inner.list_offsets(dict.fromkeys(places, spec))
    return {at.partition: int(one.offset) for at, one in found.items()}


async def scan_of(call: Call, fetches: Fetches) -> tuple[Scan, list[int]]:
    """Return the search that a call asks for, and the partitions that it leaves out because they have no leader. Raises
    :class:`Wrong` and errors of the cluster."""
    wanted = filter_of(call)
    place = call.choice("from", PLACES, "newest")
    going_on = _going_on(call.text("positions")) if place == "go-on" else {}
    newest_first = call.text("order") == "newest" if going_on else place == "newest"
    places, leaderless = await _partitions(call)
    firsts = await _offsets(call, places, OffsetSpec.earliest())
    ends = await _offsets(call, places, OffsetSpec.latest())
    if place == "newest":
        positions = ends
    elif place == "oldest":
        positions = dict(firsts)
    elif place == "offset":
        at = call.number("at", 0)
        positions = {partition: min(max(at, firsts[partition]), ends[partition]) for partition in firsts}
    elif place == "time":
        found = await _offsets(call, places, OffsetSpec.for_timestamp(call.number("at", 0)))
        positions = {partition: at if at >= 0 else ends[partition] for partition, at in found.items()}
    else:
        positions = {at: min(max(going_on[at], firsts[at]), ends[at]) for at in going_on.keys() & firsts.keys()}
    scan = Scan(
        fetches,
        call.names["topic"],
        positions,
        firsts if newest_first else ends,
        wanted,
        _view(call),
        newest_first,
        call.text("control") == "yes",
        Limits(rows=call.number("rows", ROWS_MAX, 1, ROWS_MAX)),
    )
    return scan, leaderless


def _going_on(text: str) -> dict[int, int]:
    """Parse ``0:17,1:30``: where a search continues, by partition."""
    found = {}
    for item in filter(None, text.split(",")):
        partition, _, offset = item.partition(":")
        found[number("positions", partition, 0, 2**31 - 1)] = number("positions", offset)
    return found


async def search(call: Call) -> AsyncIterator[bytes]:
    """Yield ``rows`` events as rows are found and ``done`` at the end: how much was read and how many offsets are left,
    what stopped it, where to continue, which partitions were left out."""
    async with call.desk.fetcher() as fetches:
        scan, leaderless = await scan_of(call, fetches)
        async with aclosing(scan.run()) as found:
            async for rows in found:
                yield event({"rows": rows, "scanned": asdict(scan.scanned), "left": scan.left}, "rows")
        waiting = {at: offset for at, offset in _going_on(call.text("positions")).items() if at in leaderless}
        positions = ",".join(f"{at}:{offset}" for at, offset in sorted({**waiting, **scan.positions}.items()))
        order = "newest" if scan.newest_first else "oldest"
        yield event(
            {
                "scanned": asdict(scan.scanned), "left": scan.left, "leaderless": leaderless, "positions": positions,
                "order": order,
            },
            "done",
        )  # fmt: skip


async def tail(call: Call) -> AsyncIterator[bytes]:
    """Yield new records, at most :data:`TAIL_ROWS_MAX` per second, and how many more there were."""
    wanted, view = filter_of(call), _view(call)
    async with call.desk.fetcher() as fetches:
        places, _ = await _partitions(call)
        positions = await _offsets(call, places, OffsetSpec.latest())
        yield event({"rows": [], "passed": 0}, "rows")
        while True:
            await asyncio.sleep(TAIL_S)
            places, leaderless = await _partitions(call)
            ends = await _offsets(call, places, OffsetSpec.latest())
            for partition in ends.keys() - positions.keys():
                positions[partition] = 0  # the topic has grown
            before = {at: min(positions[at], end) for at, end in ends.items()}
            limits = Limits(records=20 * TAIL_ROWS_MAX, bytes=4 * 2**20, seconds=TAIL_S, rows=TAIL_ROWS_MAX)
            scan = Scan(fetches, call.names["topic"], dict(before), ends, wanted, view, limits=limits)
            rows: list[dict[str, Any]] = []
            async with aclosing(scan.run()) as found:
                async for some in found:
                    rows += some
            passed = sum(end - scan.positions[at] for at, end in ends.items())
            positions = dict(ends)
            if rows or passed:
                yield event({"rows": rows, "passed": passed, "leaderless": leaderless}, "rows")
            else:
                yield b""


def record(call: Call) -> dict[str, Any]:
    """Return one whole record."""
    at = TopicPartition(call.names["topic"], number("partition", call.names["partition"], 0, 2**31 - 1))
    offset = number("offset", call.names["offset"])

    async def read() -> list[dict[str, Any]]:
        async with call.desk.fetcher() as fetches:
            scan = Scan(
                fetches, at.topic, {at.partition: offset}, {at.partition: offset + 1}, Filter(), _view(call),
                control=True, cut=WHOLE,
            )  # fmt: skip
            return [row async for rows in scan.run() for row in rows]

    rows = call.desk.run(read())
    if not rows:
        raise Wrong(f"{at} no longer has a record at offset {offset:,}", 404)
    return dict(rows[0])


def produce(call: Call) -> dict[str, Any]:
    """Send one record as the person. Returns its position."""
    body = call.body()
    headers = body.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(one, list) and len(one) == 2 for one in headers):
        raise Wrong("headers: expected [name, value] pairs")
    if not all(isinstance(name, str) for name, _ in headers):
        raise Wrong("headers: expected each name to be a string")
    given = body.get("partition")
    partition = None if given in (None, "") else number("partition", given, 0, 2**31 - 1)
    key, value = _bytes("key", body.get("key")), _bytes("value", body.get("value"))
    pairs = [(name, _bytes(f"header {name[:40]}", one)) for name, one in headers]

    async def send() -> Any:
        async with call.desk.producer() as producer:
            return await producer.send_and_wait(
                call.names["topic"], value, key, headers=pairs or None, partition=partition
            )

    sent = call.desk.run(send())
    return {"partition": sent.partition, "offset": sent.offset}


_READERS: Final[dict[str, Callable[[str], bytes]]] = {
    "text": lambda text: text.encode(),
    "hex": lambda text: bytes.fromhex(text),
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def _bytes(name: str, given: object) -> bytes | None:
    """Decode ``{"text": …}``, ``{"hex": …}`` or ``{"base64": …}``; null is null. Raises :class:`Wrong`."""
    if given is None:
        return None
    if isinstance(given, dict) and len(given) == 1:
        (((how, text),)) = given.items()
        if how in _READERS and isinstance(text, str):
            try:
                return _READERS[how](text)
            except (ValueError, binascii.Error):
                raise Wrong(f"{name}: expected {how}, found {text[:40]!r}") from None
    raise Wrong(f"{name}: expected null or an object with one of {', '.join(_READERS)}")


ROUTES: Final = (
    Route("GET", "/api/topics/{topic}/messages", tell=search),
    Route("GET", "/api/topics/{topic}/tail", tell=tail),
    Route("GET", "/api/topics/{topic}/records/{partition}/{offset}", record),
    Route("POST", "/api/topics/{topic}/records", produce),
)
