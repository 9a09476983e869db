"""ApiVersions, which every client sends first: the APIs of this listener.

A request in an unknown version gets an answer of version 0 with error 35 and all supported versions, so that a newer
client can ask again. The header of an ApiVersions response never has tagged fields (KIP-511).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tidelog.broker.kafka.wire.apis import Api
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.model.ids import Offset
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import API_VERSIONS, RequestHeader, response_header
from tidelog.proto.kafka.messages import decode_request, encode_response
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.logs.record_levels import CONSUMER_PROTOCOL

MOST: Final = 4
CONSUMER_GROUP_APIS: Final = frozenset((68, 69))
"""ConsumerGroupHeartbeat and ConsumerGroupDescribe."""
_SOFTWARE_FROM: Final = 3
_ZERO_LEVELS_FROM: Final = 4
"""From this version on, a feature's lowest level may be 0. Older clients fail on 0, so Kafka leaves such a feature out
of the supported ones (KAFKA-17492)."""


class ApiVersions:
    """Answers from the table of APIs and the features in the metadata; encoded anew when the metadata changed."""

    def __init__(self, apis: Mapping[int, Api], traffic: KafkaTraffic, image: Callable[[], MetadataImage]) -> None:
        self._traffic = traffic
        self._image = image
        ranges = {key: (api.least, api.most) for key, api in apis.items()}
        # Versions 0 to 2 of Produce are refused when used, but some librdkafka compress only if they are listed.
        ranges[produce_codec.API_KEY] = (0, produce_codec.MOST)
        ranges[fetch_codec.API_KEY] = (fetch_codec.LEAST, fetch_codec.MOST)
        ranges[API_VERSIONS] = (0, MOST)
        self._keys = [
            {"api_key": key, "min_version": least, "max_version": most} for key, (least, most) in sorted(ranges.items())
        ]
        self._keys_below_groups = [each for each in self._keys if each["api_key"] not in CONSUMER_GROUP_APIS]
        self._bodies: dict[tuple[int, int], tuple[Offset, bytes]] = {}

    def answer(self, header: RequestHeader, body: memoryview, told: Callable[[str, str], None]) -> bytes:
        """Return the whole response with its header. ``told`` gets the name and version of the client's software.
        Raises ``BadMessage``."""
        version, error = header.api_version, ErrorCode.NONE
        if not 0 <= version <= MOST:
            version, error = 0, ErrorCode.UNSUPPORTED_VERSION
        elif version >= _SOFTWARE_FROM:
            request = decode_request(API_VERSIONS, version, body)
            if not (request.client_software_name and request.client_software_version):
                error = ErrorCode.INVALID_REQUEST
            else:
                told(request.client_software_name, request.client_software_version)
        elif len(body):
            raise BadMessage(f"expected an ApiVersions request without a body, found {len(body)} bytes")
        if error:
            self._traffic.failed(API_VERSIONS, error)
        return response_header(API_VERSIONS, version, header.correlation_id) + self._body(version, error)

    def _body(self, version: int, error: ErrorCode) -> bytes:
        image = self._image()
        found = self._bodies.get((version, error))
        if found is None or found[0] != image.offset:
            values = {
                "error_code": error,
                "api_keys": self._keys_for(image) if error is not ErrorCode.INVALID_REQUEST else (),
                **_features(version, image),
            }
            found = self._bodies[version, error] = image.offset, encode_response(API_VERSIONS, version, values)
        return found[1]

    def _keys_for(self, image: MetadataImage) -> list[dict[str, int]]:
        """Return the APIs. The consumer protocol is offered once its feature is enabled."""
        return self._keys if CONSUMER_PROTOCOL.is_open(image.features) else self._keys_below_groups


def _features(version: int, image: MetadataImage) -> dict[str, Any]:
    """Return the features. A feature whose highest level is 0 does not exist yet, and is left out. The epoch is the
    metadata's offset, as in Kafka: clients believe the node with the highest."""
    return {
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            if high > 0 and (low > 0 or version >= _ZERO_LEVELS_FROM)
        ],
        "finalized_features_epoch": image.offset,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in sorted(image.features.items())
        ],
    }
