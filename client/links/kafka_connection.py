"""A client connection to a broker over the Kafka protocol: one request at a time, with TLS and SASL as configured."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from tidelog.client.config.security import ClientSecurity
from tidelog.model.version import VERSION
from tidelog.proto.kafka.headers import API_VERSIONS, is_flexible
from tidelog.proto.kafka.messages import decode_response, request_frame
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.network import Address
from tidelog.security.sasl import ClientMechanism, LoginRefused
from tidelog.security.tls_check import client_context
from tidelog.security.tls_store import TlsStore

T = TypeVar("T")

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 128 * 2**20
VERSIONS: Final[Mapping[int, int]] = {1: 13, 2: 6, 3: 10, 9: 8, 10: 4, 16: 4, 23: 4, 32: 4}
"""API keys, each with the version that a link uses. Kafka has all of them from release 3.1 on. Fetches name topics by
id (KIP-516), so that another topic with the same name is not mistaken for the former one."""
_UNSUPPORTED_VERSION: Final = 35
_LIFETIME_SHARE: Final = 0.8
_LENGTH: Final = struct.Struct(">i")


class SourceLost(Exception):
    """The source is unreachable, or does not answer; it may later."""


class SourceRefused(Exception):
    """The source's answer will not change by asking again."""


class KafkaConnection:
    """See the module. :meth:`ask` opens it, and reopens it after it broke."""

    def __init__(self, address: Address, security: ClientSecurity, tls: TlsStore | None, client_id: str) -> None:
        self.address = address
        self._security = security
        self._tls = tls
        self._client_id = client_id.encode()
        self._correlations = itertools.count(1)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self._ends_at: float | None = None

    async def ask(self, api_key: int, values: Mapping[str, Any], *, wait_s: float = 0.0) -> Any:
        """Return the answer's fields; ``wait_s``: how long the broker may wait on purpose. Raises :class:`SourceLost`
        and :class:`SourceRefused`."""
        async with self._lock:
            if self._ends_at is not None and asyncio.get_running_loop().time() >= self._ends_at:
                self.close()
            if self._streams is None:
                await self._guarded(self._open(), CONNECT_S + ANSWER_S)
            return await self._guarded(self._ask(api_key, VERSIONS[api_key], values), ANSWER_S + wait_s)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = self._ends_at = None

    async def _guarded(self, work: Awaitable[T], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except BaseException as error:
            self.close()  # a late answer would be taken for another request's
            if isinstance(error, ssl.SSLCertVerificationError):
                raise SourceRefused(f"{self.address}: {error.verify_message}") from None
            if isinstance(error, TimeoutError):
                raise SourceLost(f"{self.address}: no answer in {seconds:g} s: is that a Kafka listener?") from None
            if isinstance(error, OSError | EOFError):
                raise SourceLost(f"{self.address}: {getattr(error, 'strerror', None) or error}") from None
            if isinstance(error, BadMessage):
                raise SourceRefused(f"{self.address}: expected a Kafka protocol answer: {error}") from None
            raise

    async def _open(self) -> None:
        context = None
        if self._tls is not None:
            self._tls.refresh()
            context = client_context(self._tls.material)
        host = self.address.host
        async with asyncio.timeout(CONNECT_S):
            named = host if context is not None else None
            self._streams = await asyncio.open_connection(host, self.address.port, ssl=context, server_hostname=named)
        software = {"client_software_name": "tidelog-link", "client_software_version": VERSION}
        served = await self._ask(API_VERSIONS, 3, software)
        if served.error_code not in (0, _UNSUPPORTED_VERSION):
            raise SourceRefused(f"{self.address}: ApiVersions: error {served.error_code}")
        ranges = {one.api_key: (one.min_version, one.max_version) for one in served.api_keys}
        for api_key, version in VERSIONS.items():
            low, high = ranges.get(api_key, (-1, -1))
            if not low <= version <= high:
                raise SourceRefused(
                    f"{self.address}: expected Kafka 3.1 or later, with version {version} of API {api_key}, found "
                    f"versions {low} to {high}"
                )
        begin = self._security.login()
        if begin is not None:
            try:
                await self._log_in(begin())
            except LoginRefused as error:
                raise SourceRefused(f"{self.address}: {error}") from None

    async def _log_in(self, mechanism: ClientMechanism) -> None:
        answer = await self._ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism.name})
        if answer.error_code:
            raise LoginRefused(f"expected one of {', '.join(answer.mechanisms)}, found {mechanism.name}")
        token: bytes | None = await asyncio.to_thread(mechanism.first)
        while token is not None:
            answer = await self._ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
            if answer.error_code:
                raise LoginRefused(answer.error_message or f"login refused, error {answer.error_code}")
            token = await asyncio.to_thread(mechanism.step, bytes(answer.auth_bytes))
        if not mechanism.done:
            raise LoginRefused("the server did not prove that it knows the password")
        if answer.session_lifetime:
            loop = asyncio.get_running_loop()
            self._ends_at = loop.time() + answer.session_lifetime / 1000 * _LIFETIME_SHARE

    async def _ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        number = next(self._correlations)
        writer.write(request_frame(api_key, version, number, values, self._client_id))
        await writer.drain()
        (size,) = _LENGTH.unpack(await reader.readexactly(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise BadMessage(f"found an answer of {size} bytes")
        answer = memoryview(await reader.readexactly(size))
        if _LENGTH.unpack_from(answer) != (number,):
            raise BadMessage("found the answer to another request")
        if api_key == API_VERSIONS and int.from_bytes(answer[4:6], "big") == _UNSUPPORTED_VERSION:
            version = 0  # the answer from a broker that does not know our version (KIP-511)
        start = 5 if is_flexible(api_key, version) and api_key != API_VERSIONS else 4
        return decode_response(api_key, version, answer[start:])
