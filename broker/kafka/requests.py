"""Requests of one connection, by their API: decoded, served, charged to the client's quota, encoded."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.kafka.calls.cluster.metadata_bytes import METADATA_API, with_throttle_time
from tidelog.broker.kafka.host import Host
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.kafka.wire.kafka_traffic import count_errors
from tidelog.broker.kafka.wire.pending import CloseConnection, Pending, Pieces
from tidelog.broker.quotas.usage import RequestUsage
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import (
    API_VERSIONS,
    RequestHeader,
    answered_body,
    client_id_of,
    read_request_header,
    response_header,
)
from tidelog.proto.kafka.messages import decode_request, encode_response
from tidelog.proto.kafka.schemas import api_name
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.network import CallContext
from tidelog.security.session import Session

Call = Callable[[], Awaitable[Pieces]]
"""A request that nothing behind it on its connection may overtake."""
_KEY_VERSION: Final = struct.Struct(">hh")
_EXEMPT: Final = frozenset((27,))
"""Requests whose time is charged to nobody: WriteTxnMarkers."""


class KafkaRequests:
    """See the module."""

    __slots__ = ("_access", "_client_id", "_context", "_host", "_mute", "_number", "_peer", "_software")

    def __init__(self, host: Host, number: int, peer: str, session: Session, mute: Callable[[int], None]) -> None:
        """``mute`` begins no further request for so many milliseconds."""
        self._host = host
        self._number = number
        self._peer = peer
        self._mute = mute
        self._software = "", ""
        self._client_id = ""
        self.of(session)

    def of(self, session: Session) -> None:
        """Whose requests come from now on."""
        self._context = CallContext(self._host.listener, self._peer, session)
        self._access: dict[str, Access | None] | None = None
        """The sender's rights, by request. They are made once for a session, and refer to the authorizer, which
        follows the metadata."""

    @property
    def caller(self) -> CallContext:
        """Who asks, with the client id of the last request that is neither Produce nor Fetch."""
        return dataclasses.replace(self._context, client_id=self._client_id)

    @property
    def software(self) -> str:
        return " ".join(filter(None, self._software))

    def begin(self, frame: memoryview) -> Pieces | Pending | Call:
        """Return the answer to a request, now or soon, or the call that has to be made. Raises ``BadMessage`` or
        ``CloseConnection``: the end."""
        host = self._host
        key, version = _KEY_VERSION.unpack_from(frame)
        if key not in host.served:
            raise BadMessage(f"expected an API that this listener serves, found key {key}, version {version}")
        requests = host.traffic.requests
        requests[key] = requests.get(key, 0) + 1
        if key == produce_codec.API_KEY and 0 <= version <= produce_codec.MOST:
            if frame.obj is host.shared_buffer.obj:
                frame = memoryview(bytes(frame))  # an append may wait for others, longer than the buffer is valid
            head, body = answered_body(frame, flexible=version >= produce_codec.FLEXIBLE)
            usage = self._usage(client_id_of(frame)) if host.client_quotas.any_set else None
            if usage is not None:
                usage.produced(len(frame))
            return host.produce.handle(version, head, body, self._rights("Produce"), usage)
        if key == fetch_codec.API_KEY and fetch_codec.LEAST <= version <= fetch_codec.MOST:
            head, body = answered_body(frame, flexible=version >= fetch_codec.FLEXIBLE)
            usage = self._usage(client_id_of(frame)) if host.client_quotas.any_set else None
            access, principal = self._rights("Fetch"), self._context.session.principal
            return host.fetch.handle(version, head, body, access, usage, principal)
        header = read_request_header(frame)
        if key == API_VERSIONS:
            return (self.versions(header, frame[header.end :]),)
        return self._call(header, frame)

    def versions(self, header: RequestHeader, body: memoryview) -> bytes:
        self._client_id = header.client_id
        return self._host.api_versions.answer(header, body, self._told)

    def _told(self, software: str, version: str) -> None:
        self._software = software, version

    def _rights(self, request: str) -> Access | None:
        found = self._access
        if found is None:
            found = self._access = {}
        if request not in found:
            found[request] = self._host.access(self._context, request)
        return found[request]

    def _usage(self, client_id: str) -> RequestUsage:
        user = self._context.session.principal.name
        return RequestUsage(self._host.client_quotas, user, client_id, self._mute)

    def _call(self, header: RequestHeader, frame: memoryview) -> Call:
        host, key, version = self._host, header.api_key, header.api_version
        api = host.apis.get(key)
        if api is None or not api.least <= version <= api.most:
            raise BadMessage(f"expected a version of API {key} that ApiVersions names, found version {version}")
        if len(frame) > host.limits.call_bytes_max:
            most = host.limits.call_bytes_max
            raise BadMessage(f"expected a request of API {key} of at most {most} bytes, found {len(frame)}")
        request = decode_request(key, version, frame[header.end :])
        self._client_id = header.client_id
        caller = self._context
        context = KafkaContext(
            host.listener,
            self._peer,
            self._number,
            host.calls,
            CallContext(caller.listener, caller.peer, caller.session, client_id=header.client_id),
            host.access(caller, api_name(key)),
            self._software,
        )
        return partial(self._call_api, api, request, context, header)

    async def _call_api(self, api: Api, request: Any, context: KafkaContext, header: RequestHeader) -> Pieces:
        if self._host.client_quotas.any_set:
            usage = self._usage(header.client_id)
            answer = await usage.watch.time(api.handle(request, header.api_version, context))
            answer = _throttled(header, answer, usage)
        else:
            answer = await api.handle(request, header.api_version, context)
        if answer is None:
            raise CloseConnection(f"API {header.api_key} has no error code for this refusal")
        if not isinstance(answer, bytes):
            count_errors(self._host.traffic, header.api_key, answer)
            answer = encode_response(header.api_key, header.api_version, answer)
        return response_header(header.api_key, header.api_version, header.correlation_id), answer


def _throttled(header: RequestHeader, answer: Answer, usage: RequestUsage) -> Answer:
    """Return the answer with the time that the client has to wait."""
    if header.api_key not in _EXEMPT:
        usage.answered(answer.get("throttle_time", 0) if isinstance(answer, Mapping) else 0)
    if not usage.told_ms or answer is None:
        return answer
    if isinstance(answer, bytes):
        assert header.api_key == METADATA_API, "no other answer is already encoded here"
        return with_throttle_time(answer, header.api_version, usage.told_ms)
    return {**answer, "throttle_time": usage.told_ms}
