"""A client that sends exactly what a test wants: one request in one version, and returns its answer."""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Any, Self

from tidelog.proto.kafka.headers import API_VERSIONS, is_flexible
from tidelog.proto.kafka.messages import decode_response, request_frame

TIMEOUT_S = 20.0


class WireClient:
    """A connection to the first address of ``bootstrap``."""

    def __init__(self, bootstrap: str, client_id: str = "wire") -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        self._correlation = itertools.count(1)
        self._client_id = client_id.encode()
        self.body = b""
        """The last answer's bytes behind its header."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """The answer's fields."""
        return self.answer(api_key, version, self.send(api_key, version, **values))

    def send(self, api_key: int, version: int, **values: Any) -> int:
        """Return the request's number, by which :meth:`answer` reads the answer."""
        number = next(self._correlation)
        self._socket.sendall(request_frame(api_key, version, number, values, self._client_id))
        return number

    def answer(self, api_key: int, version: int, number: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        assert struct.unpack_from(">i", answer) == (number,)
        start = 5 if is_flexible(api_key, version) and api_key != API_VERSIONS else 4
        self.body = answer[start:]
        return decode_response(api_key, version, self.body)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "the connection was closed instead of an answer"
            found += piece
        return bytes(found)
