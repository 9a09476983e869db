"""A broker's quotas on a driven clock: what is counted for whom, and how long whom has to wait."""

from __future__ import annotations

import asyncio

import pytest
from immutables import Map

from tidelog.broker.quotas import client_quotas
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.usage import RequestUsage, Stopwatch, StreamUsage, metered
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.model.settings.node.quota_settings import QuotaSettings
from tidelog.proto.calls.api import DescribeClusterRequest
from tidelog.proto.calls.quota_api import wire_entity
from tidelog.proto.calls.transaction_api import WriteTxnMarkersRequest
from tidelog.proto.transport.network import CallContext


class DrivenClock:
    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Quotas:
    def __init__(self) -> None:
        self.clock = DrivenClock()
        self.quotas = ClientQuotas(QuotaSettings(), self.clock)
        self._set: dict[ClientQuotaEntity, dict[str, float]] = {}

    def set(self, values: dict[str, float], **entity: str) -> None:
        """No values: remove them."""
        self._set[ClientQuotaEntity(**entity)] = values
        image = MetadataImage(quotas=Map({wire_entity(e): Map(v) for e, v in self._set.items() if v}))
        assert list(self.quotas.on_metadata(image, MetadataDelta(quotas=True))) == []

    def produce(self, user: str, client: str, size: float) -> int:
        return self.quotas.used(user, client, self.quotas.produce, size, 0.0)


@pytest.fixture
def quotas() -> Quotas:
    return Quotas()


def test_those_who_share_a_quota_share_what_was_counted(quotas: Quotas) -> None:
    assert not quotas.quotas.any_set
    quotas.set({"producer_byte_rate": 100.0}, user="u")
    assert quotas.produce("u", "a", 1_000) == 0
    assert quotas.produce("u", "b", 200) == 2_000, "another client id of the same user"
    assert quotas.produce("v", "a", 10**9) == 0, "a user without a quota"
    assert quotas.quotas.used("u", "a", quotas.quotas.fetch, 10**9, 0.0) == 0, "a quota of another kind"
    quotas.set({"producer_byte_rate": 100.0}, user="", client_id="")
    assert quotas.produce("v", "a", 1_100) == 1_000
    assert quotas.produce("v", "b", 1_000) == 0, "each client id has its own share"


def test_another_limit_goes_on_from_what_was_counted(quotas: Quotas) -> None:
    quotas.set({"producer_byte_rate": 100.0}, client_id="c")
    assert quotas.produce("u", "c", 1_500) == 5_000
    quotas.set({"producer_byte_rate": 1_000.0}, client_id="c")
    assert quotas.produce("u", "c", 100) == 0
    quotas.set({"producer_byte_rate": 100.0}, client_id="c")
    assert quotas.produce("u", "c", 0.001) == 6_000
    quotas.set({}, client_id="c")
    assert quotas.produce("u", "c", 10**9) == 0
    assert not quotas.quotas.any_set


def test_a_client_that_waits_is_not_let_off_by_changes_for_others(quotas: Quotas) -> None:
    quotas.set({"producer_byte_rate": 100.0}, client_id="c")
    assert quotas.produce("u", "c", 1_500) == 5_000
    for limit in (1.0, 2.0, 3.0):
        quotas.set({"producer_byte_rate": limit}, client_id="other")
    assert quotas.produce("u", "c", 0.001) == 5_000


@pytest.mark.parametrize(
    "entity",
    [
        {"user": "u"}, {"user": ""}, {"client_id": "c"}, {"client_id": ""},
        *({"user": user, "client_id": client} for user in ("u", "") for client in ("c", "")),
    ],
)  # fmt: skip
def test_counts_outlast_changes_and_end_with_the_quota(quotas: Quotas, entity: dict[str, str]) -> None:
    quotas.set({"producer_byte_rate": 100.0}, **entity)
    assert quotas.produce("u", "c", 1_500) == 5_000
    for limit in (1.0, 2.0):
        quotas.set({"producer_byte_rate": limit}, user="other")
    assert quotas.produce("u", "c", 0.001) == 5_000
    quotas.set({}, **entity)
    quotas.set({"producer_byte_rate": 100.0}, **entity)
    assert quotas.produce("u", "c", 1_000) == 0


def test_a_change_of_something_else_changes_nothing(quotas: Quotas) -> None:
    quotas.set({"producer_byte_rate": 100.0}, client_id="c")
    quotas.quotas.on_metadata(MetadataImage(), MetadataDelta())
    assert quotas.quotas.any_set


def test_request_time_is_a_share_of_the_event_loop_and_waits_a_window_at_most(quotas: Quotas) -> None:
    quotas.set({"request_percentage": 10.0}, client_id="c")
    used = quotas.quotas.used
    assert used("u", "c", None, 0, 1.0) == 0, "ten seconds' worth"
    assert used("u", "c", None, 0, 0.05) == 500
    assert used("u", "c", None, 0, 60.0) == 1_000
    assert used("u", "other", None, 0, 60.0) == 0


def test_the_slower_of_two_quotas_decides_and_is_told(quotas: Quotas) -> None:
    quotas.set({"producer_byte_rate": 100.0, "request_percentage": 10.0}, client_id="c")
    kinds = quotas.quotas
    assert kinds.used("u", "c", kinds.produce, 1_050, 60.0) == 1_000
    assert kinds.used("u", "c", kinds.produce, 1_050, 0.001) == 11_000
    request, produce = kinds.request.sensors["", "c"], kinds.produce.sensors["", "c"]
    assert (request.throttles, request.throttle_ms) == (1, 1_000)
    assert (produce.throttles, produce.throttle_ms) == (1, 11_000)


def test_a_fetch_that_waits_is_not_counted(quotas: Quotas) -> None:
    quotas.set({"consumer_byte_rate": 100.0}, client_id="c")
    muted: list[int] = []

    def fetch(size: int) -> tuple[bool, int]:
        usage = RequestUsage(quotas.quotas, "u", "c", muted.append)
        return usage.fetched(size), usage.told_ms

    assert RequestUsage(quotas.quotas, "u", "c", muted.append).fetches_at_once() == 1_000
    assert fetch(1_000) == (True, 0)
    assert fetch(500) == (False, 5_000)
    assert fetch(500) == (False, 5_000), "the first one was taken back"
    quotas.clock.ms += 11_000
    assert fetch(500) == (True, 0)
    assert muted == [5_000, 5_000]


async def test_a_stream_is_held_for_as_long_as_a_connection_would_be(quotas: Quotas) -> None:
    stream = StreamUsage(quotas.quotas, CallContext("CLIENT", "x", client_id="c"))
    stream.produced(10**9, 1.0)
    assert stream.hold() is None
    assert stream.fetches_at_once() is None
    quotas.set({"producer_byte_rate": 100.0, "consumer_byte_rate": 5.0}, client_id="c")
    assert stream.fetches_at_once() == 50
    stream.produced(1_001, 0.0)
    held = 0
    while (wait := stream.hold()) is not None:
        await wait
        held += 1
    assert held
    stream.produced(10**6, 0.0)
    waits = stream.hold()
    assert asyncio.iscoroutine(waits)
    waits.close()


async def test_work_is_timed_without_what_it_waits_for() -> None:
    async def work(ready: asyncio.Future[str]) -> str:
        try:
            return await ready
        except ValueError as error:
            return str(error)

    loop = asyncio.get_running_loop()
    for settle, said in (
        (lambda ready: ready.set_result("done"), "done"),
        (lambda ready: ready.set_exception(ValueError("no")), "no"),
    ):  # type: tuple[Callable[[asyncio.Future[str]], Any], str]
        ready: asyncio.Future[str] = loop.create_future()
        loop.call_later(0.2, settle, ready)
        watch, started = Stopwatch(), loop.time()
        assert await watch.time(work(ready)) == said
        assert 0 < watch.total_s < loop.time() - started - 0.1
    task = loop.create_task(Stopwatch().time(work(loop.create_future())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_cost_their_time_but_not_those_of_nodes(quotas: Quotas) -> None:
    quotas.set({"request_percentage": 1e-6}, client_id="c")

    async def handle(request: object, context: CallContext) -> str:
        return "answer"

    calls = metered({DescribeClusterRequest: handle, WriteTxnMarkersRequest: handle}, quotas.quotas)
    context = CallContext("CLIENT", "x", client_id="c")
    loop = asyncio.get_running_loop()
    assert await calls[WriteTxnMarkersRequest](object(), context) == "answer"
    assert not quotas.quotas.request.sensors
    started = loop.time()
    assert await calls[DescribeClusterRequest](object(), context) == "answer"
    assert loop.time() - started >= 0.99, "it is answered a window later"
    assert quotas.quotas.request.sensors["", "c"].throttle_ms == 1_000


def test_sensors_and_clients_are_bounded(quotas: Quotas, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("SENSORS_MAX", 10), ("SENSORS_KEPT", 8), ("CLIENTS_MAX", 30)):
        monkeypatch.setattr(client_quotas, name, most)
    quotas.set({"producer_byte_rate": 100.0}, client_id="")
    kind = quotas.quotas.produce
    for number in range(200):
        quotas.clock.ms += 1
        quotas.produce("u", f"c{number}", 1)
        quotas.produce("u", "steady", 1)
        assert len(kind.sensors) <= 10
        assert len(kind._of) <= 30
        if number % 5 == 0:
            quotas.set({"producer_byte_rate": 100.0}, client_id="")
            assert len(kind._before) <= 8
    assert quotas.produce("u", "steady", 10_000) > 0, "one that is in use was dropped"
