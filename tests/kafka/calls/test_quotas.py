"""DescribeClientQuotas and AlterClientQuotas on the wire, and as kafka-python writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from tests.kafka.wire_client import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.testing.cluster import Cluster

DESCRIBE, ALTER = 48, 49
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.fixture
def wire(kafka_cluster: Cluster) -> Iterator[WireClient]:
    with WireClient(kafka_cluster.kafka_bootstrap) as client:
        yield client
    with kafka_cluster.admin() as admin:
        found = admin.describe_client_quotas()
        admin.alter_client_quotas({entity: dict.fromkeys(values) for entity, values in found.items()})


def entity(**named: str | None) -> list[dict[str, Any]]:
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in named.items()]


def change(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": value or 0.0, "remove": value is None}


def match(kind: str, how: int, name: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": how, "match": name}


def described(
    wire: WireClient, *components: dict[str, Any], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = wire.ask(DESCRIBE, version, components=components, strict=strict)
    assert (answer.error_code, answer.error_message) == (0, None)
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described(wire: WireClient, version: int) -> None:
    answer = wire.ask(
        ALTER,
        version,
        entries=[
            {"entity": entity(user="u"), "ops": [change("producer_byte_rate", 5.0), change("request_percentage", 0.5)]},
            {"entity": entity(client_id=None, user="u"), "ops": [change("consumer_byte_rate", 7.0)]},
            {"entity": entity(user=None), "ops": [change("producer_byte_rate", 9.0)]},
            {"entity": entity(ip="10.1.2.3"), "ops": [change("connection_creation_rate", 2.0)]},
            {"entity": entity(ip="10.1.2.4"), "ops": [change("producer_byte_rate", 2.0)]},
        ],
        validate_only=False,
    )
    assert [each.error_code for each in answer.entries] == [0, 0, 0, 0, ErrorCode.INVALID_REQUEST]
    assert [part.entity_type for part in answer.entries[1].entity] == ["client-id", "user"]
    alone, both = (("user", "u"),), (("user", "u"), ("client-id", None))
    everybody, address = (("user", None),), (("ip", "10.1.2.3"),)
    assert described(wire, version=version) == {
        alone: {"producer_byte_rate": 5.0, "request_percentage": 0.5},
        both: {"consumer_byte_rate": 7.0},
        everybody: {"producer_byte_rate": 9.0},
        address: {"connection_creation_rate": 2.0},
    }
    assert described(wire, match("user", EXACT, "u"), version=version).keys() == {alone, both}
    assert described(wire, match("user", EXACT, "u"), strict=True).keys() == {alone}
    assert described(wire, match("user", DEFAULT)).keys() == {everybody}
    assert described(wire, match("user", SPECIFIED)).keys() == {alone, both, everybody}
    assert described(wire, match("user", SPECIFIED), match("client-id", DEFAULT)).keys() == {both}
    assert described(wire, match("ip", EXACT, "::ffff:10.1.2.3")).keys() == {address}
    assert described(wire, match("client-id", EXACT, "nobody")) == {}
    removed = wire.ask(
        ALTER, version, entries=[{"entity": entity(user="u"), "ops": [change("producer_byte_rate", None)]}],
        validate_only=False,
    )  # fmt: skip
    assert removed.entries[0].error_code == 0
    assert described(wire, match("user", EXACT, "u"), strict=True) == {alone: {"request_percentage": 0.5}}


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([match("", DEFAULT)], ErrorCode.INVALID_REQUEST),
        ([match("group", DEFAULT)], ErrorCode.UNSUPPORTED_VERSION),
        ([match("user", DEFAULT), match("user", DEFAULT)], ErrorCode.INVALID_REQUEST),
        ([match("user", EXACT)], ErrorCode.INVALID_REQUEST),
        ([match("user", DEFAULT, "u")], ErrorCode.INVALID_REQUEST),
        ([match("user", 3)], ErrorCode.INVALID_REQUEST),
        ([match("user", -1)], ErrorCode.INVALID_REQUEST),
        ([match("ip", DEFAULT), match("user", DEFAULT)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    wire: WireClient, components: list[dict[str, Any]], error: ErrorCode
) -> None:
    answer = wire.ask(DESCRIBE, 1, components=components, strict=False)
    assert (answer.error_code, answer.entries) == (error, None)
    assert answer.error_message.startswith(("expected", "user: expected"))


def test_kafka_python_writes_and_reads_them(kafka_cluster: Cluster, wire: WireClient) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=kafka_cluster.kafka_bootstrap)
    try:
        entry = AlterClientQuotasRequest.EntryData
        user = entry.EntityData(entity_type="user", entity_name="u")
        op = entry.OpData(key="producer_byte_rate", value=3.0, remove=False)
        alter = AlterClientQuotasRequest(entries=[entry(entity=[user], ops=[op])], validate_only=False)
        answer = admin._manager.run(admin._manager.send, alter)
        assert [each.error_code for each in answer.entries] == [0]
        found = admin._manager.run(admin._manager.send, DescribeClientQuotasRequest(components=[], strict=False))
        (described,) = found.entries
        assert [(part.entity_type, part.entity_name) for part in described.entity] == [("user", "u")]
        assert [(each.key, each.value) for each in described.values] == [("producer_byte_rate", 3.0)]
    finally:
        admin.close()
