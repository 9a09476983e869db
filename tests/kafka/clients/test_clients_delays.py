"""Foreign clients and delay topics: what they write for later, in transactions too, other foreign clients read."""

from __future__ import annotations

from collections.abc import Callable

from tests.delay_topics import create_delay_topic
from tests.kafka.clients.test_clients_transactions import COMMITTED, transactional
from tests.kafka.kafka_clients import confluent_read
from tidelog.testing.cluster import Cluster


def test_a_foreign_client_writes_for_later_and_another_one_reads_it_once(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    later, bills, dead, bootstrap = (
        topic_name("later"),
        topic_name("bills"),
        topic_name("dead"),
        kafka_cluster.kafka_bootstrap,
    )
    create_delay_topic(kafka_cluster, later, dead, delay_target=bills)
    with transactional(bootstrap, later) as producer:
        for commits, values in ((False, [b"never"]), (True, [b"second", b"first"])):
            producer.begin_transaction()
            for number, value in enumerate(values):
                producer.produce(
                    later, value, key=b"k", partition=0, headers={"tidelog-delay-ms": f"{600 - 300 * number}"}
                )
            if commits:
                producer.commit_transaction(20)
            else:
                producer.flush(20)
                producer.abort_transaction(20)
    found = confluent_read(bootstrap, bills, 0, 2, **COMMITTED)
    assert [one.value for one in found] == [b"first", b"second"]
    told = {name: value or b"" for name, value in found[0].headers}
    assert told["tidelog-delay-id"].startswith(f"{later}-0-".encode())
    assert int(told["tidelog-delay-due"]) == int(told["tidelog-delay-timestamp"]) + 300
