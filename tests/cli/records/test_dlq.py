"""``tidelog dlq``: letters that workers wrote, moved back once, also by a redrive that was interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cli.in_process import Tidelog, as_json, runs_commands
from tests.client.workers.test_workers import Running, letters, workers
from tidelog import ConsumerRecord
from tidelog.client.errors import IllegalStateError
from tidelog.client.workers import redrive as module
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, transport="grpc") as made:
        yield made


@pytest.fixture
def tidelog(cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    return runs_commands(cluster.bootstrap, capfd, monkeypatch)


def with_letters(cluster: Cluster, topic: str, count: int = 12, errors: tuple[str, ...] = ("odd", "even")) -> str:
    """Records 0 to ``count`` - 1 of a topic, all dead. Returns the topic of dead letters."""
    dead = f"dlq.{topic}"
    cluster.create_topic(topic, partitions=2)
    cluster.create_topic(dead, partitions=1)
    with cluster.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("n", b"%d" % number)])

    def handler(record: ConsumerRecord) -> None:
        raise KeyError(errors[int(record.value or b"") % len(errors)])

    running = Running(workers(cluster, topic, handler, dead_letters=dead))
    while running.of.counts.dead < count:
        running.check()
    running.of.stop()
    running.ended()
    return dead


def values(cluster: Cluster, topic: str) -> Counter[int]:
    return Counter(int(record.value or b"") for record in letters(cluster, topic))


def test_list_and_show(cluster: Cluster, tidelog: Tidelog) -> None:
    dead = with_letters(cluster, "shown")
    found = as_json(tidelog("dlq", "list", dead, "--json"))
    assert (found["read"], found["whole"]) == (12, True)
    (kind,) = found["letters"]
    assert (kind["reason"], kind["origin"], kind["exception"], kind["count"]) == (
        "attempts", "shown", "builtins.KeyError", 12,
    )  # fmt: skip
    assert as_json(tidelog("dlq", "list", dead, "--exception", "odd", "--json"))["letters"][0]["count"] == 6
    assert as_json(tidelog("dlq", "list", dead, "--max", "5", "--json"))["whole"] is False
    code, out, _ = tidelog("dlq", "list", dead)
    assert (code, "KeyError" in out) == (0, True)

    code, out, _ = tidelog("dlq", "show", dead, "0:0")
    assert code == 0
    assert "came from: shown-" in out
    assert "reason: attempts, after 1 tries" in out
    assert "key: k" in out
    assert "Traceback" in out
    assert as_json(tidelog("dlq", "show", dead, "0:0", "--json"))["value"] == "0"
    for place, text in (("0:999", "expected the offset of a record from 0 to"), ("7:0", "expected a partition from 0")):
        code, _, err = tidelog("dlq", "show", dead, place)
        assert (code, text in err) == (1, True), err


def test_letters_go_back_once_with_the_headers_that_they_had(cluster: Cluster, tidelog: Tidelog) -> None:
    dead = with_letters(cluster, "back")
    assert as_json(tidelog("dlq", "redrive", dead, "--dry-run", "--json"))["moved"] == 12
    found = as_json(tidelog("dlq", "redrive", dead, "--exception", "odd", "--json"))
    assert (found["moved"], found["left"]) == (6, 6)
    assert as_json(tidelog("dlq", "redrive", dead, "--exception", "odd", "--json"))["moved"] == 0
    assert as_json(tidelog("dlq", "redrive", dead, "--json"))["moved"] == 6, "what the filter had left out"
    assert values(cluster, "back") == Counter([*range(12), *range(12)])
    again = letters(cluster, "back")[-1]
    assert again.headers == (("n", again.value), ("tidelog-redrives", b"1"))


def test_a_redrive_that_is_interrupted_goes_on(
    cluster: Cluster, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = with_letters(cluster, "interrupted", 20)
    monkeypatch.setattr(module, "CHUNK", 6)
    move, chunks = module.Redrive._move, list[int]()

    def interrupted(self: module.Redrive, *given: object) -> int:
        if len(chunks) == 2:
            raise KeyboardInterrupt
        chunks.append(1)
        return move(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as broken:
        broken.setattr(module.Redrive, "_move", interrupted)
        assert tidelog("dlq", "redrive", dead)[0] != 0
    assert values(cluster, "interrupted").total() == 20 + 12
    assert as_json(tidelog("dlq", "redrive", dead, "--json"))["moved"] == 8
    assert values(cluster, "interrupted") == Counter([*range(20), *range(20)])


def test_a_record_that_dies_again_and_again_stays(cluster: Cluster, tidelog: Tidelog) -> None:
    dead = with_letters(cluster, "looping", 1)
    for turn in range(3):
        assert as_json(tidelog("dlq", "redrive", dead, "--json"))["moved"] == 1
        running = Running(workers(cluster, "looping", lambda _: 1 / 0, dead_letters=dead))
        while running.of.counts.dead < 1:
            running.check()
        running.of.stop()
        running.ended()
        assert values(cluster, dead).total() == turn + 2
    found = as_json(tidelog("dlq", "redrive", dead, "--json"))
    assert (found["moved"], found["looping"]) == (0, 1)


def test_elsewhere_letters_without_an_origin_and_purge(cluster: Cluster, tidelog: Tidelog) -> None:
    cluster.create_topic("plain", partitions=1)
    cluster.create_topic("elsewhere", partitions=1)
    with cluster.producer() as producer:
        producer.send_many("plain", [b"1", b"2"]).result(60)
    found = as_json(tidelog("dlq", "redrive", "plain", "--json"))
    assert (found["moved"], found["unknown"]) == (0, 2)
    code, _, err = tidelog("dlq", "redrive", "plain", "--to", "plain")
    assert (code, "expected a topic other than" in err) == (2, True)
    assert as_json(tidelog("dlq", "redrive", "plain", "--to", "elsewhere", "--json"))["moved"] == 2
    assert values(cluster, "elsewhere") == Counter([1, 2])
    assert tidelog("dlq", "purge", "plain")[0] == 2
    assert as_json(tidelog("dlq", "purge", "plain", "--before-offset", "0:1", "--json"))[0]["first_offset"] == 1
    assert as_json(tidelog("dlq", "purge", "plain", "--all", "--json"))[0]["first_offset"] == 2


def test_a_filter_with_too_many_gaps_is_refused_before_anything_is_moved(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = with_letters(cluster, "gaps", 12)
    monkeypatch.setattr("tidelog.client.workers.progress.METADATA_MAX", 8)
    job = module.Redrive(cluster.bootstrap, dead, chosen=lambda letter: int(letter.record.value or b"") % 2 == 1)
    with pytest.raises(IllegalStateError, match="no room to name"):
        job.run()
    assert values(cluster, "gaps").total() == 12
