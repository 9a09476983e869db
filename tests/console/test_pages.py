"""What pages show and do, on a cluster in this process."""

from __future__ import annotations

import threading
import time
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import until
from tidelog import Consumer, NewTopic, TopicPartition
from tidelog.broker.health.facts import Facts
from tidelog.broker.health.look import Look
from tidelog.broker.health.rule import Finding, Report, Severity
from tidelog.console.access import access_of
from tidelog.console.desk import Desk
from tidelog.console.pages.cluster import FINDINGS_MAX, LIVE_S, SUBJECTS_MAX
from tidelog.console.pages.messages import TAIL_ROWS_MAX
from tidelog.console.pages.paging import PAGE_ROWS
from tidelog.proto.calls.controller_api import BrokerHeartbeatRequest, FetchMetadataRequest
from tidelog.proto.transport.grpc_calling import GrpcConnection
from tidelog.testing import Cluster

from .conftest import DEADLINE_S, Console, Person


@pytest.fixture(scope="module")
def orders(open_cluster: Cluster) -> str:
    open_cluster.create_topic("orders", partitions=3)
    with open_cluster.producer(compression_type="zstd") as producer:
        for number in range(60):
            headers = [("trace", b"t%d" % number)]
            producer.send("orders", b'{"id": %d}' % number, b"k%d" % number, partition=number % 3, headers=headers)
        producer.flush()
    return "orders"


def rows_of(person: Person, path: str) -> list[dict[str, Any]]:
    found = person.events(path, lambda kind, _: kind in ("done", "trouble"))
    assert found[-1][0] == "done", found[-1]
    return [row for kind, data in found if kind == "rows" for row in data["rows"]]


def test_the_cluster_at_a_glance(anybody: Person, orders: str) -> None:
    shown = anybody.get("/api/cluster").json
    assert shown["health"]["summary"].startswith("1 of 1 broker; 1 ")
    assert [(node["node"], node["state"], node["active"]) for node in shown["nodes"]] == [(1, "live", True)]
    assert shown["nodes"][0]["disks"][0]["free"] > 0


def test_many_findings_are_counted(anybody: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Finding(f"rule {number}", Severity.WARNING, "what", "why", "do", tuple(map(str, range(100))), None)
        for number in range(FINDINGS_MAX + 7)
    ]
    look = Look(Facts(now_ms=1), Report(tuple(found), ()), 0)
    monkeypatch.setattr(Desk, "look", lambda _: look)
    health = anybody.get("/api/cluster").json["health"]
    assert ([one["rule"] for one in health["findings"]], health["more_findings"]) == (
        [one.rule for one in found[:FINDINGS_MAX]], 7,
    )  # fmt: skip
    assert len(health["findings"][0]["subjects"]) == SUBJECTS_MAX


def test_a_live_page_sends_what_has_changed_and_nothing_else(
    anybody: Person, open_cluster: Cluster, orders: str
) -> None:
    seen: list[Any] = []

    def until(_: str, data: Any) -> bool:
        seen.append([one["name"] for one in data["topics"]])
        if len(seen) == 1:
            open_cluster.create_topic("a-new-one")
        return "a-new-one" in seen[-1]

    anybody.events("/api/topics", until)
    assert len(seen) == 2, "one for each change"


def test_without_an_open_page_the_brokers_are_asked_nothing(
    open_console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the page that asks most often. The node's own requests do not count, nor do those to other clusters,
    which clients of other tests may still look for."""
    asked: list[tuple[str, str]] = []
    real = GrpcConnection.call

    async def call(self: GrpcConnection, request: Any, *, timeout_s: float) -> Any:
        if type(request) not in (BrokerHeartbeatRequest, FetchMetadataRequest):
            asked.append((str(self.address), type(request).__name__))
        return await real(self, request, timeout_s=timeout_s)

    monkeypatch.setattr(GrpcConnection, "call", call)
    person = open_console.person()
    assert person.enter().status == 200
    person.events("/api/cluster", lambda *_: True)
    here = {address for address, name in asked if name == "DescribeClusterRequest"} | {open_console.bootstrap}
    assert len(here) == 2
    deadline, count, quiet_s = time.monotonic() + DEADLINE_S, 0, time.monotonic()
    while time.monotonic() - quiet_s < 1.2 * LIVE_S:
        now = sum(address in here for address, _ in asked)
        if now > count:  # what was under way when the page was closed
            count, quiet_s = now, time.monotonic()
        assert time.monotonic() < deadline, asked[-20:]
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("from=oldest&partition=0&rows=3", [0, 3, 6]),
        ("partition=0&rows=3", [57, 54, 51]),
        ("from=offset&at=5&partition=1&rows=2", [16, 19]),
        ("from=oldest&key=k17", [17]),
        ("from=oldest&value=%22id%22%3A+4%7D&mode=text", [4]),
        ("from=oldest&value=id%22%3A+4%5B12%5D&mode=re2", [41, 42]),
        ("from=oldest&header=trace%3Dt33", [33]),
        ("from=time&at=0&partition=2&rows=1", [2]),
        ("from=oldest&since=99999999999999", []),
        ("from=oldest&key=nothing", []),
    ],
)
def test_a_search(anybody: Person, orders: str, query: str, ids: list[int]) -> None:
    rows = rows_of(anybody, f"/api/topics/{orders}/messages?{query}")
    assert sorted(row["value"]["text"] for row in rows) == sorted(f'{{"id": {number}}}' for number in ids)
    assert all(row["compression"] == "zstd" for row in rows)


def test_a_search_that_is_wrong_says_why(anybody: Person, orders: str) -> None:
    for query, why in (
        ("value=(&mode=re2", "RE2"), ("partition=9", "expected 0 to 2"), ("from=offset&at=x", "whole number"),
        ("from=somewhere", "expected one of"), ("from=go-on&positions=x", "positions"),
    ):  # fmt: skip
        ((kind, told),) = anybody.events(f"/api/topics/{orders}/messages?{query}", lambda *_: True)
        assert kind == "trouble"
        assert why in told["message"], query
    ((_, told),) = anybody.events("/api/topics/none/messages", lambda *_: True)
    assert (told["status"], told["error"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_record_is_produced_and_shown_whole(anybody: Person, open_cluster: Cluster) -> None:
    open_cluster.create_topic("mine")
    text = "<script>alert(1)</script>" + "x" * 100_000
    body = {"key": {"hex": "00ff"}, "value": {"text": text}, "headers": [["h", None], ["b", {"base64": "aGk="}]]}
    sent = anybody.post("/api/topics/mine/records", body)
    assert sent.json == {"partition": 0, "offset": 0}
    found = anybody.get("/api/topics/mine/records/0/0").json
    assert found["key"] == {"size": 2, "hex": "00ff"}
    assert found["value"]["text"] == text
    assert [[name, value and value["text"]] for name, value in found["headers"]] == [["h", None], ["b", "hi"]]
    (row,) = rows_of(anybody, "/api/topics/mine/messages")
    assert row["value"]["cut"] is True
    assert anybody.get("/api/topics/mine/records/0/1").status == 404
    for wrong in ({"hex": "0"}, {"base64": "?"}, {"text": 1}, "x", {"text": "a", "hex": "00"}):
        assert anybody.post("/api/topics/mine/records", {"value": wrong}).status == 400


def test_a_tail_shows_some_and_counts_the_rest(anybody: Person, open_cluster: Cluster) -> None:
    open_cluster.create_topic("fast")
    total = 3 * TAIL_ROWS_MAX
    seen: list[Any] = []

    def send() -> None:
        with open_cluster.producer() as producer:
            producer.send_many("fast", [b"%d" % number for number in range(total)]).result()

    def until(_: str, data: Any) -> bool:
        seen.append(data)
        if len(seen) == 1:
            threading.Thread(target=send).start()
        return bool(sum(len(one["rows"]) + one["passed"] for one in seen) >= total)

    anybody.events("/api/topics/fast/tail", until)
    assert all(len(one["rows"]) <= TAIL_ROWS_MAX for one in seen)
    assert sum(len(one["rows"]) + one["passed"] for one in seen) == total
    assert any(one["passed"] for one in seen)


# --- Topics and settings ----------------------------------------------------------------------------------


def test_a_topic_is_made_grown_and_deleted(anybody: Person) -> None:
    assert anybody.post("/api/topics", {"name": "short-lived", "partitions": 1, "copies": 1}).status == 200
    assert anybody.post("/api/topics/short-lived/partitions", {"partitions": 3}).status == 200
    assert [one["partition"] for one in anybody.get("/api/topics/short-lived").json["partitions"]] == [0, 1, 2]
    assert anybody.post("/api/topics/short-lived/partitions", {"partitions": 2}).json["error"] == "INVALID_PARTITIONS"
    assert anybody.post("/api/topics/short-lived/delete", {"confirm": "short-lived"}).status == 200
    deadline = time.monotonic() + DEADLINE_S  # the broker hears of it a little later
    while anybody.get("/api/topics/short-lived").status != 404:
        assert time.monotonic() < deadline
    for body in ({"name": "x", "partitions": "many"}, {"name": 1}, {"name": "a/b"}, {"name": "x", "configs": {"a": 1}}):
        assert anybody.post("/api/topics", body).status in (400, 409)


def test_two_editors_of_one_setting_do_not_overwrite_each_other(anybody: Person, orders: str) -> None:
    path = f"/api/topics/{orders}/settings"

    def now() -> Any:
        return next(one for one in anybody.get(path).json["settings"] if one["name"] == "retention.ms")

    before = now()["value"]
    assert now()["source"] == "DEFAULT_CONFIG"
    change = {"name": "retention.ms", "expected": before}
    assert anybody.post(path, {**change, "value": "1000", "only_check": True}).status == 200
    assert now()["value"] == before, "it was only checked"
    assert anybody.post(path, {**change, "value": "3600000"}).status == 200
    said = anybody.post(path, {**change, "value": "7200000"})
    assert said.status == 409
    assert "'3600000'" in said.json["message"]
    assert (now()["value"], now()["source"]) == ("3600000", "DYNAMIC_TOPIC_CONFIG")
    assert anybody.post(path, {"name": "retention.ms", "expected": "3600000", "value": "x"}).status == 409
    assert anybody.post(path, {"name": "retention.ms", "expected": "3600000", "value": None}).status == 200
    assert now()["source"] == "DEFAULT_CONFIG"
    assert anybody.post(path, {"name": "no.such", "expected": None, "value": "1"}).status == 404


def test_long_lists_come_in_pages_sorted_by_the_server(anybody: Person, open_cluster: Cluster) -> None:
    with open_cluster.admin() as admin:
        from tidelog import NewTopic

        admin.create_topics([NewTopic(f"many-{number:03}", 1, 1) for number in range(PAGE_ROWS + 5)])
    first = anybody.get("/api/topics?search=many&sort=name").json
    assert (first["pages"], first["matching"], len(first["topics"])) == (2, PAGE_ROWS + 5, PAGE_ROWS)
    last = anybody.get("/api/topics?search=many&sort=name&order=down&page=2").json
    assert [one["name"] for one in last["topics"]] == [f"many-{number:03}" for number in range(4, -1, -1)]
    assert anybody.get("/api/topics?search=many&page=99").json["page"] == 2, "the last there is"
    for query in ("page=0", "page=x", "sort=colour", "order=sideways"):
        assert anybody.get(f"/api/topics?{query}").status == 400


# --- Groups -----------------------------------------------------------------------------------------------


GROUP = "team/a <b>&?#"


def test_a_group_its_lag_and_a_reset_by_its_preview(anybody: Person, open_cluster: Cluster, orders: str) -> None:
    with open_cluster.admin() as admin:
        admin.alter_consumer_group_offsets(GROUP, {TopicPartition(orders, 0): 15, TopicPartition(orders, 1): 20})
    path = f"/api/groups/{quote(GROUP, safe='')}"
    assert {"name": GROUP, "lag": 5}.items() <= anybody.get("/api/groups").json["groups"][0].items()
    shown = anybody.get(path).json
    assert (shown["state"], shown["lag"], [one["lag"] for one in shown["partitions"]]) == ("Empty", 5, [5, 0])
    assert shown["lag_s"] > 0
    plan = anybody.post(f"{path}/preview", {"to": "earliest"}).json
    assert [(one["partition"], one["from"], one["to"]) for one in plan["moves"]] == [(0, 15, 0), (1, 20, 0)]
    assert anybody.get(path).json["lag"] == 5, "a preview changes nothing"
    with open_cluster.admin() as admin:
        admin.alter_consumer_group_offsets(GROUP, {TopicPartition(orders, 0): 16})
    assert anybody.post(f"{path}/reset", plan).status == 409, "the group has moved meanwhile"
    plan = anybody.post(f"{path}/preview", {"to": "shift", "at": -100}).json
    assert [one["to"] for one in plan["moves"]] == [0, 0]
    assert plan["notes"]
    said = anybody.post(f"{path}/preview", {"to": "shift", "at": -100, "topic": orders})
    assert (said.status, "expected a committed offset" in said.json["message"]) == (400, True)
    plan = anybody.post(f"{path}/preview", {"to": "offset", "at": 7}).json
    assert anybody.post(f"{path}/reset", plan).json == {"moved": 2}
    assert [one["committed"] for one in anybody.get(path).json["partitions"]] == [7, 7]
    assert anybody.post(f"{path}/reset", {"moves": []}).status == 400
    assert anybody.post(f"{path}/preview", {"to": "nowhere"}).status == 400
    assert anybody.post(f"{path}/delete", {"confirm": GROUP}).status == 200
    assert anybody.get(path).status == 404


def test_a_group_that_reads_is_shown_with_its_members_and_not_reset(
    anybody: Person, open_cluster: Cluster, orders: str
) -> None:
    with Consumer(open_cluster.bootstrap, group_id="readers", client_id="reader-1") as consumer:
        consumer.subscribe([orders])
        deadline = time.monotonic() + DEADLINE_S
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        shown = anybody.get("/api/groups/readers").json
        assert (shown["state"], [one["client"] for one in shown["members"]]) == ("Stable", ["reader-1"])
        assert len(shown["members"][0]["assignment"]) == 3
        moves = [{"topic": orders, "partition": 0, "from": None, "to": 0}]
        said = anybody.post("/api/groups/readers/reset", {"moves": moves})
        assert said.status in (400, 409), said.body


# --- The rest ---------------------------------------------------------------------------------------------


def test_a_transaction_is_shown_and_ended(anybody: Person, open_cluster: Cluster, orders: str) -> None:
    with open_cluster.producer(transactional_id="tx/1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(orders, b"open", partition=0).result()
        (shown,) = anybody.get("/api/transactions").json["transactions"]
        assert (shown["name"], shown["state"], shown["partitions"]) == ("tx/1", "Ongoing", ["orders-0"])
        rows = rows_of(anybody, f"/api/topics/{orders}/messages?from=oldest&value=open")
        assert [row["transaction"] for row in rows] == ["open"]
        assert anybody.post("/api/transactions/tx%2F1/terminate", {"confirm": "tx/1"}).status == 200
    rows = rows_of(anybody, f"/api/topics/{orders}/messages?from=oldest&value=open")
    assert [row["transaction"] for row in rows] == ["aborted"]
    assert anybody.get("/api/transactions-hanging").json["hanging"] == []
    gone = {"topic": orders, "partition": 0, "start": 0}
    assert anybody.post("/api/transactions-hanging", gone).status == 409
    assert anybody.get("/api/moves").json == {"moves": []}


def test_a_sink_is_shown_its_job_aborted_and_the_sink_forgotten(
    anybody: Person, open_cluster: Cluster, orders: str
) -> None:
    name = "to/orders"
    with open_cluster.sink_ledger(name) as ledger:
        with open_cluster.sink_writer(ledger.new_job(0)) as writer:
            writer.send_many(orders, [b"a row"])
            message = writer.prepare()
        ledger.commit_batch([message])
        job = ledger.new_job(1)
        with open_cluster.sink_writer(job) as writer:
            writer.send_many(orders, [b"never seen"])
            writer.prepare()
        (shown,) = anybody.get("/api/sinks").json["sinks"]
        assert (shown["name"], shown["last"]["batch"]) == (name, 0)
        assert shown["current"] == {"batch": 1, "job": job.job}
        assert [one["state"] for one in shown["open"]] == ["Prepared"]
        path = "/api/sinks/to%2Forders"
        assert anybody.post(f"{path}/abort", {**shown["current"]}).status == 428, "it has to be confirmed"
        assert anybody.post(f"{path}/delete", {"confirm": name}).status == 409, "it has transactions"
        decided = {"confirm": name, "batch": 0, "job": shown["last"]["job"]}
        assert anybody.post(f"{path}/abort", decided).status == 409
        assert anybody.post(f"{path}/abort", {"confirm": name, **shown["current"]}).status == 200
        deadline = time.monotonic() + DEADLINE_S
        while anybody.post(f"{path}/delete", {"confirm": name}).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert anybody.get("/api/sinks").json["sinks"] == []


def test_the_plan_is_that_of_the_command(anybody: Person) -> None:
    shown = anybody.get("/api/plan").json
    assert shown["nodes"] > 1
    assert set(shown["load_times"]) == {"1", "2", "5", "10", "20", "50", "100"}
    assert anybody.get("/api/plan?records_a_day=1000000").json["nodes"] < shown["nodes"]
    assert shown["growth"] == []
    for query in ("records_a_day=-1", "records_a_day=nan", "copies=1.5", "retention_hours=x", "record_bytes=1e30"):
        said = anybody.get(f"/api/plan?{query}")
        assert (said.status, "expected" in said.json["message"]) == (400, True), query


def test_without_access_control_that_is_said(anybody: Person) -> None:
    assert anybody.get("/api/acls").json == {"off": True}
    quota = {"user": "ann", "client": None, "ip": None, "values": {"producer_byte_rate": 1_000}}
    assert anybody.post("/api/quotas", quota).status == 200
    (shown,) = anybody.get("/api/quotas").json["quotas"]
    assert (shown["name"], shown["values"]) == ("user ann", {"producer_byte_rate": 1_000.0})
    assert anybody.post("/api/quotas", {**quota, "values": {"producer_byte_rate": None}}).status == 200
    assert anybody.get("/api/quotas").json["quotas"] == []


def test_drills_are_off_unless_they_were_asked_for(anybody: Person) -> None:
    assert anybody.get("/api/drills").json["on"] is False
    assert anybody.post("/api/drills/leader-loss").status == 403


def test_a_move_is_shown_with_its_progress_and_cancelled() -> None:
    """With half of the nodes down: the new replica is on a dead node, so the move waits."""
    with Cluster(2, transport="grpc", controllers=1) as cluster, cluster.admin() as admin:
        admin.create_topics([NewTopic("moved", assignments={0: (1,)})])
        with cluster.producer() as producer:
            producer.send("moved", b"x" * 1_000).result(DEADLINE_S)
        cluster.kill(2)
        console = Console(cluster.bootstrap, access_of({}))
        try:
            person = console.person()
            person.enter()
            at = TopicPartition("moved", 0)
            until(lambda: all(one.fenced for one in admin.describe_cluster().brokers[1:]), "the dead node is fenced")
            admin.alter_partition_reassignments({at: [2]})
            ((_, shown),) = person.events("/api/moves", lambda *_: True)
            (move,) = shown["moves"]
            assert (move["topic"], move["partition"], move["adding"], move["removing"]) == ("moved", 0, [2], [1])
            assert move["copied"] == {"2": 0}
            assert move["size"] > 1_000
            assert person.post("/api/moves/cancel", {"topic": "moved", "partition": 0}).status == 200
            person.events("/api/moves", lambda _, data: data["moves"] == [])
            assert admin.list_partition_reassignments() == {}
        finally:
            console.close()
