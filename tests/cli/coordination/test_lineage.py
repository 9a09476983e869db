"""``tidelog lineage``: what programs of the SDK and a foreign client read and write in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer as ForeignProducer

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tidelog import ConsumerRecord, ProducerRecord, Transform
from tidelog.testing import Cluster

BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, transport="grpc") as made:
        for name in ("orders", "bills", "odd", "mails", "imports", "aborted"):
            made.create_topic(name, partitions=2)
        yield made


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def bill(cluster: Cluster, number: int) -> None:
    """Run a program of the group ``billing`` until it has handled a record."""

    def to_bills(record: ConsumerRecord) -> list[ProducerRecord]:
        job.stop()
        return [ProducerRecord("bills", record.value), ProducerRecord("odd", record.value)]

    with cluster.producer() as producer:
        producer.send("orders", b"%d" % number, partition=number).result()
    job = Transform(
        to_bills, cluster.bootstrap, topics="orders", group_id="billing", transactional_id=f"billing-{number}",
        consumer_settings={"client_id": "biller"}, producer_settings={"client_id": "biller-out"},
    )  # fmt: skip
    job.run()


def mail(cluster: Cluster) -> None:
    """A foreign client moves one record from ``bills`` to ``mails``, after an aborted transaction."""
    address = {"bootstrap.servers": cluster.kafka_bootstrap, "client.id": "mailer"}
    consumer = ForeignConsumer(
        {**address, "group.id": "mailing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = ForeignProducer({**address, "transactional.id": "mailing-0"})
    try:
        consumer.subscribe(["bills"])
        while (found := consumer.poll(BOUND_S)) is None or found.error():
            pass
        producer.init_transactions(BOUND_S)
        for target, commits in (("aborted", False), ("mails", True)):
            producer.begin_transaction()
            producer.produce(target, found.value())
            producer.flush(BOUND_S)
            if not commits:
                producer.abort_transaction(BOUND_S)
                continue
            places = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), BOUND_S)
            producer.commit_transaction(BOUND_S)
    finally:
        consumer.close()


def test_programs_of_all_clients_with_what_they_read_and_write(cluster: Cluster, tidelog: Tidelog) -> None:
    for number in range(2):
        bill(cluster, number)
    mail(cluster)
    with cluster.producer(transactional_id='im"port') as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("imports", b"1")

    found = as_json(tidelog("lineage", "--json"))
    assert found["forgotten"] == 0
    told = {one.pop("program"): one for one in found["programs"]}
    edges = {name: one.pop("edges") for name, one in told.items()}
    assert told == {
        "billing": {
            "transactional_ids": ["billing-0", "billing-1"],
            "client_ids": ["biller-out"],
            "reads": ["orders"],
            "writes": ["bills", "odd"],
        },
        "mailing": {
            "transactional_ids": ["mailing-0"],
            "client_ids": ["mailer"],
            "reads": ["bills"],
            "writes": ["mails"],
        },
        'im"port': {"transactional_ids": ['im"port'], "client_ids": [], "reads": [], "writes": ["imports"]},
    }
    for edge in edges["billing"]:
        assert edge["group"] == ("billing" if edge["reads"] else None)
        assert edge["count"] == 1
        assert found["since_ms"] <= edge["first_ms"] <= edge["last_ms"]

    only = as_json(tidelog("lineage", "--topic", "mails", "--json"))["programs"]
    assert [one["program"] for one in only] == ["mailing"]
    code, out, err = tidelog("lineage")
    assert code == 0
    assert "billing-0 billing-1" in out
    assert "as remembered since" in err
    code, out, _ = tidelog("lineage", "--dot")
    assert code == 0
    for line in (
        '"topic orders" [label="orders", shape=box];',
        '"topic orders" -> "program billing";',
        '"program billing" -> "topic odd";',
        '"program im\\"port" -> "topic imports";',
    ):
        assert f"  {line}\n" in out
    assert tidelog("lineage", "--dot", "--json")[0] == 2
