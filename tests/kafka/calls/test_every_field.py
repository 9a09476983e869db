"""Every field of Kafka's answers is answered, in every version that is served: no name is wrong, none is forgotten.

Requests and the node's own answers are made from their types, with one item in each list.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from types import SimpleNamespace, UnionType
from typing import Any

import pytest

from tidelog.broker.kafka.calls.access import acls, delegation_tokens, quotas, users
from tidelog.broker.kafka.calls.cluster import cluster, features, metadata
from tidelog.broker.kafka.calls.coordination import (
    consumer_groups,
    coordinators,
    group_admin,
    group_offsets,
    groups,
    transaction_admin,
    transactions,
)
from tidelog.broker.kafka.calls.topics import configs, offsets, reassignments, topics
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.model.names import METADATA_LOG
from tidelog.proto.calls.api import DescribedConfig
from tidelog.proto.calls.table import CALLS
from tidelog.proto.kafka.messages import decode_request, encode_request, encode_response
from tidelog.proto.kafka.schemas import Schema, Shape, schema_of
from tidelog.proto.transport.network import CallContext

ID = bytes(range(16))
BROKER = SimpleNamespace(
    node_id=1, rack=None, fenced=False, endpoint=lambda _: SimpleNamespace(host="127.0.0.1", port=1)
)
IMAGE: Any = SimpleNamespace(topics={ID: SimpleNamespace(name="a")}, topic_ids={"a": ID}, brokers={1: BROKER})
VIEW: Any = SimpleNamespace(image=IMAGE)
VOTER = SimpleNamespace(node_id=1, host="h", port=1)
CONFIG: Any = SimpleNamespace(node_id=1, voters=(VOTER,), controller_listener_names=("CONTROLLER",))
SETTINGS: Any = SimpleNamespace(describe_topic=lambda _: [made(DescribedConfig)])
ALL = (
    *cluster.apis(CONFIG, VIEW),
    *topics.apis(lambda: SETTINGS),
    *offsets.apis(VIEW),
    *group_offsets.apis(VIEW),
    *configs.APIS,
    *features.APIS,
    *acls.APIS,
    *quotas.APIS,
    *users.APIS,
    *delegation_tokens.APIS,
    *reassignments.APIS,
    *coordinators.APIS,
    *groups.APIS,
    *consumer_groups.APIS,
    *group_admin.APIS,
    *transactions.APIS,
    *transaction_admin.APIS,
    Api(75, 0, 0, metadata.describe_topic_partitions),
)
TEXTS = {
    "resource_type": "topic",
    "pattern_type": "literal",
    "operation": "read",
    "permission": "allow",
    "source": "DEFAULT_CONFIG",
    "value_type": "INT",
    "owner": "User:a",
    "requester": "User:a",
}
TOPIC = 2
DEFAULTED = {
    None: {"throttle_time", "authorized_operations"},
    19: {"topic_config_error_code"},
    31: {"error_code", "error_message"},  # of a matching entry
    55: {"error_code", "error_message", "last_fetch_timestamp", "replica_directory_id"},
    60: {"error_code", "error_message", "endpoint_type"},
    75: {"next_cursor"},
}
"""What an API leaves to Kafka's default where nothing is wrong; under ``None``, what others add."""


def made(hint: Any, name: str = "") -> Any:
    """A value of this type."""
    if typing.get_origin(hint) is tuple:
        return (made(typing.get_args(hint)[0], name),)
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return made(typing.get_args(hint)[0], name)
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        make: Any = hint
        return make(**{each.name: made(hints[each.name], each.name) for each in dataclasses.fields(hint)})
    known = {str: TEXTS.get(name, "a"), bytes: ID, int: 1, float: 1.0, bool: False}
    return ErrorCode.NONE if hint is ErrorCode else known[hint]


def asked(schema: Schema) -> dict[str, Any]:
    def one(shape: Shape) -> Any:
        if shape.of is not None:
            return asked(shape.of)
        others = {"string": "a", "bytes": b"x", "bool": False, "uuid": ID}
        return others.get(shape.kind, TOPIC if shape.name.startswith("resource_type") else 1)

    return {shape.name: [one(shape)] if shape.array else one(shape) for shape in schema.shapes}


def left_to_default(schema: Schema, values: Mapping[str, Any]) -> set[str]:
    """The fields of a structure, and of those inside, that an answer does not name: perhaps by another name."""
    found = {shape.name for shape in schema.shapes if shape.name not in values}
    for shape in schema.shapes:
        value = values.get(shape.name)
        if shape.of is not None and value is not None:
            assert value, f"expected an item in {shape.name}"
            for each in value if shape.array else [value]:
                found |= left_to_default(shape.of, each)
    return found


class Calls(dict[Any, Any]):
    """Answers each of the node's own calls."""

    def __missing__(self, kind: Any) -> Any:
        async def call(_: object, __: CallContext) -> Any:
            return made(CALLS[kind])

        return call


@pytest.mark.parametrize(
    ("api", "version"),
    [pytest.param(api, at, id=f"{api.key}-v{at}") for api in ALL for at in range(api.least, api.most + 1)],
)
async def test_every_field_is_answered_in_every_version(api: Api, version: int) -> None:
    values = asked(schema_of(api.key, version, "request"))
    if api.key == 55:
        values["topics"] = [{"topic_name": METADATA_LOG, "partitions": [{"partition_index": 0}]}]
    if api.key == 75:
        values["cursor"] = None
    request = decode_request(api.key, version, encode_request(api.key, version, values))
    context = KafkaContext("KAFKA", "127.0.0.1:1", 1, Calls(), CallContext("KAFKA", "127.0.0.1:1"))
    answer = await api.handle(request, version, context)
    assert isinstance(answer, Mapping)
    encode_response(api.key, version, answer)
    found = left_to_default(schema_of(api.key, version, "response"), answer)
    assert found - DEFAULTED[None] - DEFAULTED.get(api.key, set()) == set()
