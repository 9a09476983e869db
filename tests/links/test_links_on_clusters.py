"""Links between clusters of real nodes, run by processes of their own."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tidelog import TopicPartition
from tidelog.client.admin.importing import import_records
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import InvalidRequestError, OffsetOutOfRangeError, TidelogError
from tidelog.client.links.linked import LinkAdmin
from tidelog.testing import Cluster

from .conftest import Command, Start, create, end_of, records, status, until, until_level
from .test_links import AT, batch

T = [TopicPartition("t", number) for number in range(2)]
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}


@pytest.mark.timeout(400)
def test_everything_comes_over_at_its_offset_and_goes_on_after_the_promotion(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 2, 3, config={"retention.ms": "-1"})
    source.create_topic("stamped", 1, 3, config={"message.timestamp.type": "LogAppendTime"})
    source.create_topic("emptied", 1, 3)
    source.create_topic("keys", 1, 3, config=COMPACTED)
    source.create_topic("other", 1, 3)
    with ExitStack() as stack:
        for codec in ("none", "gzip", "zstd"):
            with source.producer(compression_type=codec) as producer:
                for number in range(60):
                    headers = [("n", str(number).encode())]
                    producer.send("t", f"{codec} {number}".encode(), b"k", headers=headers, partition=number % 2)
                producer.send("stamped", codec.encode())
                producer.send("emptied", codec.encode())
                for number in range(7):
                    producer.send("keys", f"{codec} {number}".encode(), f"{number % 3}".encode()).result()
        for outcome in (True, False, None):
            producer = stack.enter_context(source.producer(transactional_id=f"id-{outcome}"))
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(10):
                producer.send("t", f"{outcome} {number}".encode(), partition=number % 2)
            producer.flush()
            if outcome is not None:
                (producer.commit_transaction if outcome else producer.abort_transaction)()
        with source.admin() as admin:
            admin.delete_records({T[0]: 7, TopicPartition("emptied", 0): 3})
            admin.alter_consumer_group_offsets("readers", {T[0]: 20, T[1]: 30})

        create(tidelog, source, target, "t|stamped|emptied|keys|grown")
        with pytest.raises(InvalidRequestError, match="link 'dr'"), target.producer() as writer:
            writer.send("t", b"mine", partition=0).result()
        running = runner("dr", target)
        until_level(tidelog, source, target, "t", "stamped", "emptied", "keys")
        for topic in ("t", "stamped", "emptied"):
            assert records(target, topic) == records(source, topic)
        assert latest(records(target, "keys")) == latest(records(source, "keys"))
        before = records(source, "t")
        assert not any(value.startswith((b"False", b"None")) for _, value, _, _ in before.values())

        # What changes at the source changes here: settings, partitions, topics, groups, the log's start.
        with source.admin() as admin:
            admin.alter_topic_configs("t", {"retention.ms": None, "max.message.bytes": "2000000"})
            admin.create_partitions({"stamped": 3})
            admin.alter_consumer_group_offsets("readers", {T[0]: 21})
            admin.delete_records({T[1]: 5})
        source.create_topic("grown", 1, 3)
        with source.producer() as producer:
            producer.send("grown", b"new").result()
            producer.send("stamped", b"second", partition=2).result()

        def followed() -> bool:
            from tidelog.proto.calls.api import ConfigResource

            resource = ConfigResource("topic", "t")
            with target.admin() as admin:
                topics = {one.name: one.partition_count for one in admin.list_topics()}
                if topics.get("stamped") != 3 or "grown" not in topics or "other" in topics:
                    return False
                values = {name: one.value for name, one in admin.describe_configs([resource])[resource].items()}
                offsets = admin.list_consumer_group_offsets("readers")
                starts = admin.list_offsets({at: OffsetSpec.earliest() for at in T})
                return (
                    (values["retention.ms"], values["max.message.bytes"]) == ("604800000", "2000000")
                    and {at: one.offset for at, one in offsets.items()} == {T[0]: 21, T[1]: 30}
                    and [starts[at].offset for at in T] == [7, 5]
                )

        until(followed, "topics, settings and groups are those of the source")
        until_level(tidelog, source, target, "t", "stamped", "grown")
        code, out, err = tidelog("links", "verify", "dr", "--bootstrap", target.bootstrap, "--json")
        assert code == 0, err
        assert sum(row["batches"] for row in json.loads(out) if row["topic"] == "t") > 5
        code, out, _ = tidelog("links", "status", "dr", "--bootstrap", target.bootstrap, "--json")
        assert {row["partition"] for row in json.loads(out)["transactions"]} == {0, 1}, "the open one is the exposure"

        code, out, err = tidelog("links", "promote", "dr", "--topic", "t", "--bootstrap", target.bootstrap, "--json")
        assert code == 0, err
        promoted = json.loads(out)
        assert [row["behind_source"] for row in promoted["partitions"]] == [0, 0]
        assert {row["partition"] for row in promoted["aborted"]} == {0, 1}
        for row in promoted["partitions"]:
            assert row["end"] == end_of(source, "t", row["partition"]) + 1, "behind the source's end lies the abort"
        # The first producers of both clusters have the same ids. These here are others all the same.
        with target.producer() as writer:
            sent = [writer.send("t", f"mine {number}".encode(), partition=0) for number in range(60)]
            offsets = [one.result().offset for one in sent]
        assert offsets == list(range(promoted["partitions"][0]["end"], promoted["partitions"][0]["end"] + 60))
        with target.producer(transactional_id="id-True") as writer:
            writer.init_transactions()
            with writer.transaction():
                writer.send("t", b"in one", partition=0)
        after = records(target, "t")
        assert {at: one for at, one in after.items() if at in before} == {
            at: one for at, one in before.items() if at != (1, 0) and at[1] >= (5 if at[0] == 1 else 7)
        }
        assert [value for _, value, _, _ in after.values()].count(b"in one") == 1
        assert ("t", 0) not in status(tidelog, target)
        code, _, err = tidelog("links", "delete", "dr", "--bootstrap", target.bootstrap)
        assert (code, "expected a link without topics, found emptied" in err) == (1, True)
        assert running.stop() == 0
        assert tidelog("links", "promote", "dr", "--bootstrap", target.bootstrap)[0] == 0
        code, _, err = tidelog("links", "delete", "dr", "--bootstrap", target.bootstrap)
        assert code == 0, err
        assert json.loads(tidelog("links", "list", "--bootstrap", target.bootstrap, "--json")[1]) == []


def latest(found: dict[tuple[int, int], Any]) -> dict[bytes, tuple[tuple[int, int], Any]]:
    return {each[0]: (at, each) for at, each in sorted(found.items())}


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_when_everybody_is_killed_and_the_link_promoted_under_load(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 2, 3, config={"min.insync.replicas": "2"})
    create(tidelog, source, target, "t")
    running = runner("dr", target)
    acknowledged: dict[tuple[int, int], bytes] = {}
    with source.producer(linger_ms=1) as producer:
        number = 0

        def write(seconds: float) -> None:
            nonlocal number
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                sent = [(at, producer.send("t", b"%d" % (number + at), partition=at % 2)) for at in range(20)]
                for at, one in sent:
                    found = one.result()
                    acknowledged[found.partition, found.offset] = b"%d" % (number + at)
                number += 20

        write(2)
        first = source.leader_of("t", 0)
        assert first is not None
        source.kill(first)
        write(2)
        running.kill()
        write(1)
        running, beside = runner("dr", target), runner("dr", target)
        write(2)
        other = target.leader_of("t", 1)
        assert other is not None
        target.kill(other)
        source.restart(first)
        write(3)
        until(lambda: end_of(target, "t", 0) > 0 and end_of(target, "t", 1) > 0, "records come over")
        beside.kill()
        target.restart(other)
        write(1)
        until_level_at(target, {at: max(end for part, end in acknowledged if part == at) + 1 for at in (0, 1)})
        write(1)
        code, out, err = tidelog("links", "promote", "dr", "--bootstrap", target.bootstrap, "--json")
        assert code == 0, err
        write(1)
    ends = {row["partition"]: row["end"] for row in json.loads(out)["partitions"]}
    found = {at: value for at, (_, value, _, _) in records(target, "t").items()}
    assert found == {at: value for at, value in acknowledged.items() if at[1] < ends[at[0]]}
    time.sleep(1)
    assert {at: end_of(target, "t", at) for at in ends} == ends, "nothing comes after the promotion"
    assert running.stop() == 0


def until_level_at(target: Cluster, ends: dict[int, int]) -> None:
    until(lambda: all(end_of(target, "t", at) >= end for at, end in ends.items()), "the target has caught up")


@pytest.mark.timeout(300)
def test_a_source_that_has_lost_records_stops_the_link_and_changes_nothing_here(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 1, 2, config={"unclean.leader.election.enable": "true"})
    leader = source.leader_of("t", 0)
    assert leader is not None
    (follower,) = [node for node in source.isr_of("t", 0) if node != leader]
    create(tidelog, source, target, "t")
    running = runner("dr", target)
    with source.producer() as producer:
        producer.send("t", b"both").result()
    source.kill(follower)
    source.wait_for_isr("t", 0, [leader])
    with source.producer() as producer:
        for number in range(5):
            producer.send("t", f"lost {number}".encode()).result()
    until(lambda: end_of(target, "t") == 6, "the target has all")
    source.kill(leader)
    source.restart(follower)
    source.wait_for_leader("t", 0, other_than=leader)
    with source.producer() as producer:
        for number in range(9):
            producer.send("t", f"other {number}".encode()).result()
    until(lambda: status(tidelog, target)["t", 0]["state"] == "stopped", "the link has stopped")
    reason = status(tidelog, target)["t", 0]["reason"]
    assert "the source has lost records that are here" in reason
    _, out, _ = tidelog("status", "--bootstrap", target.bootstrap, "--json")
    (found,) = [one for one in json.loads(out)["findings"] if one["rule"] == "links-behind"]
    assert (found["severity"], found["subjects"]) == ("critical", ["t-0"])
    assert reason in found["what"]
    # Another process finds the same, also if it only has the logs to look at.
    running.kill()
    with target.admin() as admin:
        admin.delete_consumer_groups(["tidelog.link.dr"])
    again = runner("dr", target)
    until(lambda: status(tidelog, target)["t", 0]["state"] == "stopped", "the new one has stopped too")
    code, _, err = tidelog("links", "verify", "dr", "--bootstrap", target.bootstrap)
    assert (code, "at offset 1, source and target have different records" in err) == (1, True), err
    assert [value for _, value, _, _ in records(target, "t").values()] == [b"both", *(b"lost %d" % n for n in range(5))]
    # Deleted here, it is copied anew.
    with target.admin() as admin:
        admin.delete_topics(["t"])
    until(lambda: "t" in topics(target) and end_of(target, "t") == 10, "it was copied anew")
    assert again.stop() == 0


def topics(cluster: Cluster) -> list[str]:
    with cluster.admin() as admin:
        return [topic.name for topic in admin.list_topics()]


@pytest.mark.timeout(300)
def test_a_topic_made_anew_at_the_source_is_another_one(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 1, 3)
    with source.producer() as producer:
        producer.send("t", b"old").result()
    create(tidelog, source, target, "t")
    running = runner("dr", target)
    until_level(tidelog, source, target, "t")
    with source.admin() as admin:
        admin.delete_topics(["t"])
    source.create_topic("t", 1, 3)
    with source.producer() as producer:
        for _ in range(3):
            producer.send("t", b"new").result()
    until(lambda: "deleted and created again" in status(tidelog, target)["t", 0]["reason"], "the link has stopped")
    assert [value for _, value, _, _ in records(target, "t").values()] == [b"old"]
    assert running.stop() == 0


@pytest.mark.timeout(300)
def test_a_batch_that_no_call_can_carry_stops_the_link_there(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 2, 3, config={"max.message.bytes": "30000000"})
    with source.producer(max_request_size=30_000_000) as producer:
        producer.send("t", b"small", partition=0).result()
        producer.send("t", b"." * 16_000_000, partition=0).result()
        producer.send("t", b"small", partition=1).result()
    create(tidelog, source, target, "t")
    running = runner("dr", target)
    until(lambda: "expected batches of at most" in status(tidelog, target)["t", 0]["reason"], "it has stopped")
    until(lambda: end_of(target, "t", 1) == 1, "the other partition goes on")
    assert end_of(target, "t", 0) <= 1
    assert running.stop() == 0


@pytest.mark.timeout(300)
def test_a_transaction_of_this_cluster_leaves_a_linked_log_alone(
    source: Cluster, target: Cluster, tidelog: Command
) -> None:
    """Its coordinator knows of the partition and would end it there."""
    source.create_topic("t", 1, 3)
    target.create_topic("own", 1, 3)
    create(tidelog, source, target, "t")
    with target.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("own", b"1").result()
        with pytest.raises(TidelogError):
            producer.send("t", b"1").result()
        producer.abort_transaction()
    assert end_of(target, "own", committed=True) == 2
    assert end_of(target, "t", committed=True) == 0


@pytest.mark.timeout(300)
def test_a_leader_takes_a_links_records_right_at_its_logs_end_and_nobody_elses(
    source: Cluster, target: Cluster, tidelog: Command
) -> None:
    """What lies there was not compared with the source."""
    source.create_topic("t", 1, 3)
    create(tidelog, source, target, "t")

    async def work() -> None:
        async with LinkAdmin(target.bootstrap) as admin:
            (topic,) = await admin.describe_topics(["t"])

            async def put(offset: int, end: int, link: str = "dr") -> int:
                return await import_records(
                    admin.cluster, AT, topic.topic_id, end, bytes(batch(offset).view), patience_s=0, link=link
                )

            assert await put(0, 0) == 1
            for end in (0, 2):
                with pytest.raises(OffsetOutOfRangeError):
                    await put(end, end)
            for link in ("", "another"):
                with pytest.raises(InvalidRequestError, match="no records but those of link 'dr'"):
                    await put(1, 1, link)
            assert await put(1, 1) == 2
            await admin.alter_topic_configs("t", {"link.state": "stopped"})

            async def is_stopped() -> bool:
                try:
                    await import_records(admin.cluster, AT, topic.topic_id, 0, b"", patience_s=0, link="dr")
                except InvalidRequestError:
                    return True
                return False

            while not await is_stopped():
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert end_of(target, "t") == 2


def test_a_cluster_is_no_source_for_itself(tidelog: Command) -> None:
    with Cluster(nodes=1, transport="grpc") as cluster:
        at = ("--bootstrap", cluster.bootstrap)
        code, _, err = tidelog("links", "create", "dr", "--source", cluster.bootstrap, *at, "--topics", "x")
        assert (code, "the link would loop; name another source" in err) == (1, True), err
        assert json.loads(tidelog("links", "list", *at, "--json")[1]) == []


@pytest.mark.timeout(300)
def test_what_cannot_be_linked_is_refused_and_nothing_changed(
    source: Cluster, target: Cluster, tidelog: Command, tmp_path: Path
) -> None:
    source.create_topic("t", 1, 3)
    source.create_topic("u", 1, 3)
    target.create_topic("u", 1, 3)

    def refused(text: str, *arguments: str) -> None:
        code, _, err = tidelog("links", *arguments)
        assert (code, text in err) == (1, True), err
        assert topics(target) == ["u"]
        assert json.loads(tidelog("links", "list", "--bootstrap", target.bootstrap, "--json")[1]) == []

    at = ("--bootstrap", target.bootstrap)
    from_source = ("--source", source.bootstrap, *at)
    refused(
        "expected no topic u here, found one with records of its own", "create", "dr", *from_source, "--topics", "."
    )
    refused("expected a regular expression", "create", "dr", *from_source, "--topics", "(")
    refused("as a link's name", "create", "d r", *from_source, "--topics", "t")
    refused("expected a link (none), found 'dr'", "status", "dr", *at)
    refused("expected a link (none), found 'dr'", "promote", "dr", *at)
    silent = f"127.0.0.1:{target.node_config(1).listeners[0].port}"
    grpc = [one for one in target.node_config(1).listeners if one.name == "CLIENT"]
    port = grpc[0].port if grpc else silent
    refused("127.0.0.1", "create", "dr", "--source", f"127.0.0.1:{port}", *at, "--topics", "t")

    # A topic that a link fills here is no source for the cluster that its records come from.
    assert tidelog("links", "create", "dr", *from_source, "--topics", "t")[0] == 0
    with source.admin() as admin:
        admin.delete_topics(["t"])
    code, _, err = tidelog(
        "links", "create", "back", "--source", target.bootstrap, "--bootstrap", source.bootstrap, "--topics", "t"
    )
    assert (code, "it would loop" in err) == (1, True), err
    assert topics(source) == ["u"]


@pytest.mark.timeout(300)
def test_the_source_may_ask_for_tls_and_a_password_which_nobody_is_shown(
    target: Cluster, tidelog: Command, runner: Start, tmp_path: Path
) -> None:
    with Cluster(nodes=1, transport="grpc", security="tls+scram") as secured:
        secured.create_topic("t", 1)
        with secured.producer() as producer:
            producer.send("t", b"secret").result()
        settings = secured.client_settings()
        config = tmp_path / "source.properties"
        names = {"ssl_cafile": "ssl.ca.location", "sasl_mechanism": "sasl.mechanism"}
        config.write_text(
            "".join(f"{names.get(name, name.replace('_', '.'))}={value}\n" for name, value in settings.items() if value)
        )
        password = settings["sasl_password"]
        assert password
        code, _, err = tidelog(
            "links", "create", "dr", "--source", secured.bootstrap, "--bootstrap", target.bootstrap, "--topics", "t"
        )
        assert code == 1, "without a login"
        assert topics(target) == []
        with_config = ("--source-config", str(config))
        create(tidelog, secured, target, "t", *with_config)
        running = runner("dr", target, *with_config)
        until(lambda: end_of(target, "t") == 1, "it has come")
        assert running.stop() == 0
        shown = running.log.read_text()
        for arguments in (("links", "list"), ("links", "status", "dr"), ("configs", "describe")):
            code, out, err = tidelog(*arguments, "--bootstrap", target.bootstrap, "--json")
            shown += out + err
        assert password not in shown
        config.write_text(config.read_text().replace(password, "wrong"))
        code, _, err = tidelog("links", "verify", "dr", "--bootstrap", target.bootstrap, *with_config)
        assert code == 1
        assert "wrong" not in err.replace("wrong user or password", "")
