"""Maps Kafka's numbers to the names in our calls: kinds of resources, sources and types of settings, operations."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32
LISTED: Final = (TOPIC, BROKER, CLIENT_METRICS, GROUP)
"""The kinds that are listed if none is requested."""

RESOURCES: Final = MappingProxyType(
    {TOPIC: "topic", BROKER: "broker", 8: "broker logger", CLIENT_METRICS: "client metrics", GROUP: "group"}
)
"""``ConfigResource.Type``."""

SOURCES: Final = MappingProxyType(
    {
        "DYNAMIC_TOPIC_CONFIG": 1,
        "DYNAMIC_BROKER_CONFIG": 2,
        "DYNAMIC_DEFAULT_BROKER_CONFIG": 3,
        "STATIC_BROKER_CONFIG": 4,
        "DEFAULT_CONFIG": 5,
        "DYNAMIC_CLIENT_METRICS_CONFIG": 7,
        "DYNAMIC_GROUP_CONFIG": 8,
    }
)
"""``DescribeConfigsResponse.ConfigSource``."""

TYPES: Final = MappingProxyType({"BOOLEAN": 1, "STRING": 2, "INT": 3, "LONG": 5, "DOUBLE": 6, "LIST": 7, "PASSWORD": 9})
"""``DescribeConfigsResponse.ConfigType``."""

SET: Final = 0
OPERATIONS: Final = MappingProxyType({SET: "set", 1: "delete", 2: "append", 3: "subtract"})
"""``AlterConfigOp.OpType``."""


def resource_type(number: int) -> str:
    """Return the name of a kind of resource, or the number itself if Kafka does not have it."""
    return RESOURCES.get(number, str(number))
