"""What this listener speaks: the answer to ApiVersions, with which every client begins.

A request in a version that we do not know gets an answer of version 0 with error 35 and all versions we serve,
so that a newer client can ask again; the header of an ApiVersions response never has tagged fields (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.broker.kafka.apis import Api
from tidelog.broker.kafka.kafka_traffic import KafkaTraffic
from tidelog.model.errors import ErrorCode
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import API_VERSIONS, RequestHeader, response_header
from tidelog.proto.kafka.messages import decode_request, encode_response
from tidelog.proto.kafka.wire import BadMessage

MOST: Final = 4
TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_LEVEL: Final = 2
"""Every cluster speaks the second transaction protocol (KIP-890); clients use it where this level is finalized."""
_SOFTWARE_FROM: Final = 3
_ZERO_LEVELS_FROM: Final = 4
"""From this version on a feature's lowest level may be 0 (KIP-1022)."""


class ApiVersions:
    """Answers out of the table of APIs, encoded once for each version."""

    def __init__(self, apis: Mapping[int, Api], traffic: KafkaTraffic) -> None:
        self._traffic = traffic
        ranges = {key: (api.least, api.most) for key, api in apis.items()}
        # Versions 0 to 2 of Produce are refused when they are used; some librdkafka compress only if they are named.
        ranges[produce_codec.API_KEY] = (0, produce_codec.MOST)
        ranges[fetch_codec.API_KEY] = (fetch_codec.LEAST, fetch_codec.MOST)
        ranges[API_VERSIONS] = (0, MOST)
        self._keys = [
            {"api_key": key, "min_version": least, "max_version": most} for key, (least, most) in sorted(ranges.items())
        ]
        self._bodies: dict[tuple[int, int], bytes] = {}

    def answer(self, header: RequestHeader, body: memoryview) -> bytes:
        """The whole response with its header. Raises ``BadMessage``."""
        version, error = header.api_version, ErrorCode.NONE
        if not 0 <= version <= MOST:
            version, error = 0, ErrorCode.UNSUPPORTED_VERSION
        elif version >= _SOFTWARE_FROM:
            request = decode_request(API_VERSIONS, version, body)
            if not (request.client_software_name and request.client_software_version):
                error = ErrorCode.INVALID_REQUEST
        elif len(body):
            raise BadMessage(f"expected an ApiVersions request without a body, found {len(body)} bytes")
        if error:
            self._traffic.failed(API_VERSIONS, error)
        return response_header(API_VERSIONS, version, header.correlation_id) + self._body(version, error)

    def _body(self, version: int, error: ErrorCode) -> bytes:
        found = self._bodies.get((version, error))
        if found is None:
            found = self._bodies[version, error] = encode_response(
                API_VERSIONS,
                version,
                {
                    "error_code": error,
                    "api_keys": self._keys if error is not ErrorCode.INVALID_REQUEST else (),
                    "supported_features": [
                        {
                            "name": TRANSACTION_VERSION,
                            "min_version": 0 if version >= _ZERO_LEVELS_FROM else 1,
                            "max_version": TRANSACTION_LEVEL,
                        }
                    ],
                    "finalized_features_epoch": 0,
                    "finalized_features": [
                        {
                            "name": TRANSACTION_VERSION,
                            "min_version_level": TRANSACTION_LEVEL,
                            "max_version_level": TRANSACTION_LEVEL,
                        }
                    ],
                },
            )
        return found
