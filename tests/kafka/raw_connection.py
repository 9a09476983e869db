"""A client that is a connection and nothing more: it sends what it is told to, when it is told to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

from tidelog.proto.kafka.headers import API_VERSIONS, is_flexible
from tidelog.proto.kafka.messages import decode_response, request_frame

ANSWER_TIMEOUT_S = 20.0


class Closed(Exception):
    """The node closed the connection instead of answering."""


class RawConnection:
    """One connection to one node; answers in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation = 0

    @classmethod
    async def open(cls, bootstrap: str) -> RawConnection:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        made = cls(*await asyncio.open_connection(host, int(port)))
        await made.ask(API_VERSIONS, 0, {})  # the node has accepted it, before any that is opened from now on
        return made

    async def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """The answer's fields. Raises :class:`Closed`."""
        self._correlation += 1
        self._writer.write(request_frame(api_key, version, self._correlation, values, b"raw"))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                answer = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Closed from None
        assert struct.unpack_from(">i", answer) == (self._correlation,)
        tagged = is_flexible(api_key, version) and api_key != API_VERSIONS
        return decode_response(api_key, version, answer[4 + tagged :])

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass
