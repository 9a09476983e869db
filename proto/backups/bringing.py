"""One partition's file of a backup on its way into a log: read ahead, checked, and passed on in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from tidelog.proto.backups.copying import Examination, Piece
from tidelog.proto.backups.manifest import Damaged, PartitionPart
from tidelog.proto.backups.place import Place, key_of
from tidelog.proto.backups.verifying import fault_of


def examination_of(place: Place, topic: str, part: PartitionPart) -> Examination:
    """Return an examination of a partition's file that hashes no more than it must."""
    return Examination(place, key_of(topic, part.partition), only_headers=bool(part.headers_sha256))


async def bring(
    examination: Examination, part: PartitionPart, start: int, put: Callable[[int, Piece], Awaitable[None]]
) -> None:
    """Read a whole file, and pass what is behind offset ``start`` to ``put``: the end so far, and what follows it. One
    piece is read while the one before is put. Raises what ``put`` and :meth:`Examination.pieces` raise, and
    :class:`Damaged` at the end if the file is not the manifest's."""
    read = examination.pieces(start)
    end = start
    begin = partial(asyncio.get_running_loop().run_in_executor, None, next, read, None)
    coming = begin()  # now: a task would begin when the loop is free, and ``put`` may keep it for a while
    try:
        while (piece := await coming) is not None:
            coming = begin()
            await put(end, piece)
            end = piece.end
    finally:
        coming.cancel()
    if fault := fault_of(examination.where, examination.found(), part):
        raise Damaged(fault)
