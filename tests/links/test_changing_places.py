"""Two clusters change places: the source is fenced and drained, and then follows the other one."""

from __future__ import annotations

import json
import threading

import pytest

from tidelog.client.errors import InvalidRequestError, TidelogError
from tidelog.testing import Cluster

from .conftest import Command, Start, create, end_of, records, until, until_level


@pytest.mark.timeout(400)
def test_two_clusters_change_places_under_load_and_back(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 2, 3)
    create(tidelog, source, target, "t")
    running = runner("dr", target)
    acknowledged: dict[tuple[int, int], bytes] = {}
    at = ("--bootstrap", target.bootstrap)
    with source.producer(transactional_id="x") as transactional, source.producer(linger_ms=1) as producer:
        transactional.init_transactions()
        transactional.begin_transaction()
        held = transactional.send("t", b"held", partition=0).result()
        code, _, err = tidelog("links", "promote", "dr", "--drain", "1", *at)
        assert (code, "the source accepts records again" in err) == (1, True), err
        transactional.commit_transaction()
        acknowledged[0, held.offset] = b"held"
        refused: list[TidelogError] = []

        def write() -> None:
            number = 0
            while not refused:
                number += 1
                try:
                    found = producer.send("t", b"%d" % number, partition=number % 2).result()
                except TidelogError as error:
                    refused.append(error)
                else:
                    acknowledged[found.partition, found.offset] = b"%d" % number

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: len(acknowledged) > 50, "records are written")
            code, out, err = tidelog("links", "promote", "dr", "--drain", "60", *at, "--json")
            assert code == 0, err
        finally:
            if not refused and tidelog("links", "list", *at)[0]:
                refused.append(TidelogError("the test has failed"))
            writer.join()
    assert isinstance(refused[0], InvalidRequestError)
    assert json.loads(out)["aborted"] == []
    assert {each: one[1] for each, one in records(target, "t").items()} == acknowledged
    assert running.stop() == 0

    code, _, err = tidelog("links", "reverse", "dr", "--source", target.bootstrap, *at)
    assert code == 0, err
    with target.producer() as producer:
        for number in range(20):
            producer.send("t", b"new %d" % number, partition=number % 2).result()
    back = runner("dr", source)
    until_level(tidelog, target, source, "t")
    assert records(source, "t") == records(target, "t")
    assert tidelog("links", "verify", "dr", "--bootstrap", source.bootstrap)[0] == 0
    code, _, err = tidelog("links", "promote", "dr", "--drain", "60", "--bootstrap", source.bootstrap)
    assert code == 0, err
    with source.producer() as producer:
        assert producer.send("t", b"home", partition=0).result().offset == end_of(target, "t", 0)
    assert back.stop() == 0


@pytest.mark.timeout(300)
def test_an_old_source_with_records_of_its_own_is_not_taken_back(
    source: Cluster, target: Cluster, tidelog: Command, runner: Start
) -> None:
    source.create_topic("t", 1, 3)
    with source.producer() as producer:
        producer.send("t", b"both").result()
        create(tidelog, source, target, "t")
        running = runner("dr", target)
        until(lambda: end_of(target, "t") == 1, "it has come")
        at = ("--bootstrap", target.bootstrap)
        assert tidelog("links", "reverse", "dr", "--source", target.bootstrap, *at)[0] == 1, "nothing was promoted"
        assert tidelog("links", "promote", "dr", *at)[0] == 0
        assert running.stop() == 0
        producer.send("t", b"left behind").result()
        code, _, err = tidelog("links", "reverse", "dr", "--source", target.bootstrap, *at)
        assert (code, "at offset 1, only the target has records" in err) == (1, True), err
        assert producer.send("t", b"still writable").result().offset == 2
    assert json.loads(tidelog("links", "list", "--bootstrap", source.bootstrap, "--json")[1]) == []
