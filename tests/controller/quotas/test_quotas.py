"""Client quotas in the metadata log: what is set, what is refused. Cases as in ``ClientQuotaControlManagerTest``."""

from __future__ import annotations

import pytest

from tests.controller.conftest import Bench
from tidelog.metadata_quorum.controller import quota_changes
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.quota_api import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaAlteration,
    QuotaChange,
    QuotaEntity,
    client_entity,
    wire_entity,
)

ALICE = wire_entity(ClientQuotaEntity(user="alice"))
EVERYBODY = wire_entity(ClientQuotaEntity(user="", client_id=""))
ADDRESS = wire_entity(ClientQuotaEntity(ip="10.0.0.1"))


def alter(
    bench: Bench, *wanted: tuple[tuple[QuotaEntity, ...], dict[str, float | None]], validate_only: bool = False
) -> tuple[AlteredQuotas, ...]:
    entries = tuple(
        QuotaAlteration(entity, tuple(QuotaChange(key, value) for key, value in values.items()))
        for entity, values in wanted
    )
    return bench.ask(AlterClientQuotasRequest(entries, validate_only)).entries


def present(bench: Bench) -> dict[ClientQuotaEntity, dict[str, float]]:
    return {client_entity(entity): dict(values) for entity, values in bench.controller.committed.quotas.items()}


def test_quotas_are_set_changed_and_removed_and_a_snapshot_keeps_them(bench: Bench) -> None:
    done = alter(
        bench,
        (ALICE, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
        (EVERYBODY, {"controller_mutation_rate": 0.5}),
        (ADDRESS, {"connection_creation_rate": 3.0}),
    )
    assert [each.error for each in done] == [ErrorCode.NONE] * 3
    alice, everybody = ClientQuotaEntity(user="alice"), ClientQuotaEntity(user="", client_id="")
    address = ClientQuotaEntity(ip="10.0.0.1")
    assert present(bench) == {
        alice: {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        everybody: {"controller_mutation_rate": 0.5},
        address: {"connection_creation_rate": 3.0},
    }
    image = bench.controller.committed
    assert decode_snapshot(encode_snapshot(image)) == image
    offset = bench.offset
    alter(bench, (ALICE, {"producer_byte_rate": 1000.0, "consumer_byte_rate": None}))
    assert bench.offset == offset, "what changes nothing was written"
    alter(bench, (ALICE, {"producer_byte_rate": None, "request_percentage": 10.0}), (ADDRESS, {"unheard": None}))
    assert present(bench)[alice] == {"request_percentage": 10.0}
    alter(bench, (ALICE, {"request_percentage": None}))
    assert alice not in present(bench)


def test_validation_alone_changes_nothing(bench: Bench) -> None:
    (done,) = alter(bench, (ALICE, {"producer_byte_rate": 1.0}), validate_only=True)
    assert done.error is ErrorCode.NONE
    assert present(bench) == {}


def test_an_entity_has_one_spelling(bench: Bench) -> None:
    backwards = (QuotaEntity("client-id", "c"), QuotaEntity("user", "u"))
    alter(bench, (backwards, {"producer_byte_rate": 1.0}))
    alter(bench, (backwards[::-1], {"producer_byte_rate": 2.0}))
    alter(bench, ((QuotaEntity("ip", "::FFFF:10.0.0.1"),), {"connection_creation_rate": 1.0}))
    assert present(bench) == {
        ClientQuotaEntity(user="u", client_id="c"): {"producer_byte_rate": 2.0},
        ClientQuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 1.0},
    }


@pytest.mark.parametrize(
    ("entity", "values", "said"),
    [
        ((), {"producer_byte_rate": 1.0}, "empty"),
        ((QuotaEntity("group", "g"),), {"producer_byte_rate": 1.0}, "'group'"),
        ((QuotaEntity("user", "a"), QuotaEntity("user", "b")), {"producer_byte_rate": 1.0}, "user twice"),
        ((QuotaEntity("user", ""),), {"producer_byte_rate": 1.0}, "1 to 1000 characters"),
        ((QuotaEntity("user", "a" * 1001),), {"producer_byte_rate": 1.0}, "found 1001"),
        ((QuotaEntity("ip", "1.2.3.4"), QuotaEntity("user", "a")), {"connection_creation_rate": 1.0}, "by itself"),
        ((QuotaEntity("ip", "localhost"),), {"connection_creation_rate": 1.0}, "IPv4 or IPv6"),
        (ADDRESS, {"producer_byte_rate": 1.0}, "connection_creation_rate for ip"),
        (ALICE, {"connection_creation_rate": 1.0}, "producer_byte_rate"),
        (ALICE, {"leader.replication.throttled.rate": 1.0}, "leader.replication"),
        (ALICE, {"producer_byte_rate": 0.0}, "greater than 0"),
        (ALICE, {"producer_byte_rate": -1.0}, "greater than 0"),
        (ALICE, {"request_percentage": float("nan")}, "greater than 0"),
        (ALICE, {"request_percentage": float("inf")}, "greater than 0"),
        (ALICE, {"producer_byte_rate": 1.5}, "whole number"),
        (ALICE, {"producer_byte_rate": 1e19}, "at most 9223372036854775808"),
        (ADDRESS, {"connection_creation_rate": 2.0**31}, "at most 2147483647"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_alone(
    bench: Bench, entity: tuple[QuotaEntity, ...], values: dict[str, float | None], said: str
) -> None:
    other = wire_entity(ClientQuotaEntity(client_id="other"))
    refused, done = alter(bench, (entity, {**values}), (other, {"consumer_byte_rate": 5.0}))
    assert (refused.error, done.error) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert said in refused.error_message
    assert refused.entity == entity
    assert present(bench) == {ClientQuotaEntity(client_id="other"): {"consumer_byte_rate": 5.0}}


def test_an_entity_or_a_key_twice_is_refused(bench: Bench) -> None:
    twice = alter(bench, (ALICE, {"producer_byte_rate": 1.0}), (ALICE, {"consumer_byte_rate": 1.0}))
    assert [each.error for each in twice] == [ErrorCode.INVALID_REQUEST] * 2
    changes = (QuotaChange("producer_byte_rate", 1.0), QuotaChange("producer_byte_rate", 2.0))
    (refused,) = bench.ask(AlterClientQuotasRequest((QuotaAlteration(ALICE, changes),))).entries
    assert (refused.error, "twice" in refused.error_message) == (ErrorCode.INVALID_REQUEST, True)
    assert present(bench) == {}


def test_requests_and_entities_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_changes, "CHANGES_MAX", 3)
    monkeypatch.setattr(quota_changes, "ENTITIES_MAX", 4)

    def users(count: int, start: int = 0) -> list[tuple[tuple[QuotaEntity, ...], dict[str, float | None]]]:
        numbers = range(start, start + count)
        return [(wire_entity(ClientQuotaEntity(user=f"u{n}")), {"producer_byte_rate": 1.0}) for n in numbers]

    assert {each.error for each in alter(bench, *users(4))} == {ErrorCode.INVALID_REQUEST}
    assert present(bench) == {}
    assert {each.error for each in alter(bench, *users(3))} == {ErrorCode.NONE}
    fourth, fifth = alter(bench, *users(2, 3))
    assert (fourth.error, fifth.error) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert "at most 4 entities" in fifth.error_message
    assert alter(bench, *users(1, 0))[0].error is ErrorCode.NONE, "one that is there may change"
