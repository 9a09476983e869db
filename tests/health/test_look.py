"""Since when: what a look knows of a finding's age, and the partitions that every judge calls unhealthy."""

from __future__ import annotations

from dataclasses import replace

from tidelog.broker.health.cluster_rules import whole
from tidelog.broker.health.facts import Broker, Facts, Partition
from tidelog.broker.health.look import Watch, as_object, look_at
from tidelog.broker.health.rules import report
from tidelog.model.ids import TopicPartition

WELL = Facts(1_000, controller=1, brokers={1: Broker(1, fenced=False)}, partitions=[])
FENCED = replace(WELL, brokers={1: Broker(1, fenced=True)})


class Told:
    """An asker that is told what it finds."""

    def __init__(self, *facts: Facts) -> None:
        self._facts = list(facts)

    def facts(self) -> Facts:
        return self._facts.pop(0)


def ages(*facts: Facts) -> list[list[tuple[int | None, int | None]]]:
    watch = Watch(Told(*facts))
    return [[(one.since_ms, one.before_ms) for one in watch.look().report.findings] for _ in facts]


def test_each_finding_says_since_when() -> None:
    later, last = replace(FENCED, now_ms=2_000), replace(FENCED, now_ms=3_000)
    assert ages(FENCED, later) == [[(None, 1_000)], [(None, 1_000)]], "there already when the first look came"
    assert ages(WELL, later, last) == [[], [(2_000, None)], [(2_000, None)]], "it began meanwhile"
    assert ages(FENCED, replace(WELL, now_ms=2_000), last) == [[(None, 1_000)], [], [(3_000, None)]], "and again"
    (one,) = as_object(look_at(Told(later)))["findings"]
    assert (one["since_ms"], one["before_ms"]) == (None, 2_000)


def test_a_partition_is_whole_if_no_rule_finds_anything_about_it() -> None:
    at = TopicPartition("t", 0)
    for leader in (-1, 1):
        for isr in ((1,), (1, 2), (1, 2, 3)):
            for adding in ((), (3,)):
                for least in (None, 2):
                    one = Partition(at, leader, (1, 2, 3), isr, adding, min_isr=least)
                    rules = {found.rule for found in report(Facts(0, partitions=[one])).findings}
                    assert whole(one) == (not {name for name in rules if name.startswith("partitions-")}), one
