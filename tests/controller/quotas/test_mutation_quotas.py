"""controller_mutation_rate at the controller. Cases as in Kafka's ``ControllerMutationQuotaTest`` and
``StrictControllerMutationQuotaTest``."""

from __future__ import annotations

import pytest

from tests.controller.conftest import Bench
from tidelog.metadata_quorum.controller import mutation_quotas
from tidelog.metadata_quorum.controller.mutation_quotas import MutationQuotas
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch
from tidelog.model.settings.node.quota_settings import QuotaSettings
from tidelog.proto.calls.api import (
    Charged,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    PartitionGrowth,
)
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest, QuotaAlteration, QuotaChange, wire_entity

OK, OVER = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED
ALICE = Charged("alice", "app")
LATE = Charged("alice", "app", strict=False)
Answer = CreateTopicsResponse | DeleteTopicsResponse | CreatePartitionsResponse


@pytest.fixture
def bench() -> Bench:
    """One partition a second: eleven at once."""
    made = Bench()
    made.up(1)
    limit(made, 1.0)
    return made


def limit(bench: Bench, rate: float, **entity: str) -> None:
    changes = (QuotaChange("controller_mutation_rate", rate),)
    altered = QuotaAlteration(wire_entity(ClientQuotaEntity(**(entity or {"user": "alice"}))), changes)
    assert bench.ask(AlterClientQuotasRequest((altered,))).entries[0].error is OK


def create(
    bench: Bench, *topics: tuple[str, int], charged: Charged | None = ALICE, validate_only: bool = False
) -> CreateTopicsResponse:
    wanted = tuple(NewTopic(name, partitions, 1) for name, partitions in topics)
    return bench.ask(CreateTopicsRequest(wanted, validate_only=validate_only, charged=charged))


def told(answer: Answer) -> tuple[list[ErrorCode], int]:
    return [topic.error for topic in answer.topics], answer.throttle_time_ms


def test_a_client_that_knows_the_error_is_refused_once_nothing_is_left(bench: Bench) -> None:
    assert told(create(bench, ("a", 8))) == ([OK], 0)
    assert told(create(bench, ("b", 8), ("c", 1))) == ([OK, OVER], 5_000), "the bucket may go negative once"
    assert bench.controller.draft.topic("c") is None
    bench.now_ms += 4_000
    assert told(create(bench, ("c", 1))) == ([OVER], 1_000), "a refusal costs nothing"
    bench.now_ms += 1_000
    assert told(create(bench, ("c", 1))) == ([OK], 0)


def test_a_client_that_does_not_is_served_and_waits(bench: Bench) -> None:
    assert told(create(bench, ("a", 10), charged=LATE)) == ([OK], 0)
    assert told(create(bench, ("b", 3), ("c", 4), charged=LATE)) == ([OK, OK], 6_000)
    assert told(create(bench, ("d", 1))) == ([OVER], 6_000), "the bucket is the same"


def test_deleted_and_added_partitions_count(bench: Bench) -> None:
    create(bench, ("a", 6), ("b", 6), charged=None)
    growth = CreatePartitionsRequest((PartitionGrowth("a", 10), PartitionGrowth("b", 9)), charged=ALICE)
    assert told(bench.ask(growth)) == ([OK, OK], 0)  # 7
    assert told(bench.ask(DeleteTopicsRequest(("a", "b"), charged=ALICE))) == ([OK, OVER], 6_000)  # 10 more
    assert bench.controller.draft.topic("b") is not None
    growth = CreatePartitionsRequest((PartitionGrowth("b", 10),), charged=ALICE)
    assert told(bench.ask(growth)) == ([OVER], 6_000)
    assert told(bench.ask(DeleteTopicsRequest(("b",), charged=LATE))) == ([OK], 15_000)


def test_what_is_refused_anyway_costs_nothing_and_a_trial_does_as_in_kafka(bench: Bench) -> None:
    for _ in range(20):
        assert told(create(bench, ("a", 0), ("no/name", 5)))[1] == 0
        assert told(bench.ask(DeleteTopicsRequest(("nowhere",), charged=ALICE)))[1] == 0
    assert told(create(bench, ("a", 12), validate_only=True)) == ([OK], 0)
    assert told(create(bench, ("a", 1))) == ([OVER], 1_000)


def test_a_bucket_is_shared_as_the_quota_says_and_others_have_none(bench: Bench) -> None:
    create(bench, ("a", 12))
    assert told(create(bench, ("b", 1), charged=Charged("alice", "other")))[0] == [OVER]
    for charged in (Charged("bob", "app"), None):
        assert told(create(bench, (f"free-{charged is None}", 100), charged=charged)) == ([OK], 0)
    limit(bench, 1.0, user="", client_id="")
    assert told(create(bench, ("x", 12), charged=Charged("bob", "one"))) == ([OK], 0)
    assert told(create(bench, ("y", 1), charged=Charged("bob", "one")))[0] == [OVER]
    assert told(create(bench, ("y", 1), charged=Charged("bob", "two")))[0] == [OK]


def test_another_rate_holds_at_once_and_a_new_leader_begins_anew(bench: Bench) -> None:
    create(bench, ("a", 21))
    limit(bench, 10.0)
    assert told(create(bench, ("b", 1))) == ([OVER], 1_000)
    bench.controller.resign()
    bench.take(bench.controller.lead(ControllerEpoch(1), bench.now_ms))
    assert told(create(bench, ("b", 1))) == ([OK], 0)


def test_buckets_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_quotas, "BUCKETS_MAX", 3)
    limit(bench, 1.0, client_id="")
    quotas, image = MutationQuotas(QuotaSettings()), bench.controller.draft

    def take(client: str, partitions: int) -> bool:
        return quotas.permits(image, Charged("bob", client), 1_000).take(partitions)

    assert [take(client, partitions) for client, partitions in (("a", 12), ("b", 0), ("c", 0))] == [True] * 3
    assert take("d", 12), "b and c have full buckets: they begin with full ones again"
    assert (take("a", 1), take("d", 1)) == (False, False)
    assert [take(client, 12) for client in ("e", "f")] == [True] * 2, "one more than there is room for: all go"
    assert take("a", 1)
