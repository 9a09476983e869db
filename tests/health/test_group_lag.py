"""The lag of groups as nodes export it: records, their age, and states, from real leaders and commits."""

from __future__ import annotations

import urllib.request
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import TopicPartition
from tidelog.broker import metrics as m
from tidelog.broker.coordinators import group_lag
from tidelog.broker.health.log_growth import POINTS_MAX, LogGrowth
from tidelog.broker.health.progress import SAMPLES
from tidelog.cli.work.node_metrics import parse
from tidelog.groups.routing import partition_for
from tidelog.model.link_position import GROUP_PREFIX
from tidelog.testing import Cluster

CONFIG = {"http.listener": "HTTP://127.0.0.1:0", "offsets.topic.num.partitions": "50"}
SLOW = next(
    name
    for name in (f"slow{number}" for number in range(10_000))
    if partition_for(name, 50) == partition_for("stands", 50)
)
"""A group with the coordinator of "stands", which looks at both at one instant."""
STEPS = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 50)), min_size=1, max_size=200)


@given(STEPS, st.integers(-1, 300))
def test_an_age_is_never_too_high_and_exact_while_few_points_are_known(
    steps: list[tuple[int, int]], offset: int
) -> None:
    growth, seen = LogGrowth(), list[tuple[int, int]]()
    now_ms = end = 0
    for passed_ms, written in steps:
        now_ms, end = now_ms + passed_ms, end + written
        growth.note(now_ms, end)
        seen.append((now_ms, end))
    assert growth.end == end
    since = next((at_ms for at_ms, reached in seen if reached > offset), None)
    age_ms = growth.age_ms(now_ms, offset)
    if since is None:
        assert age_ms == 0
    else:
        assert 0 <= age_ms <= now_ms - since
        if len({reached for _, reached in seen}) <= POINTS_MAX:
            assert age_ms == now_ms - since
    if offset < 0:
        assert age_ms == now_ms - seen[0][0], "the first point is never forgotten"
    growth.note(now_ms, end - 1)
    assert growth.age_ms(now_ms + 5, end - 1) == 0, "a shorter log is another one"
    assert growth.age_ms(now_ms + 5, end - 2) == 5


def scraped(cluster: Cluster) -> dict[str, Counter[tuple[str, ...]]]:
    """The values of all nodes together, by metric and labels."""
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for node in cluster.node_ids:
        with urllib.request.urlopen(f"http://{cluster.node(node).http_address}/metrics", timeout=60) as answer:
            for name, series in parse(answer.read().decode(), "page").items():
                found.setdefault(name, Counter()).update(series)
    return found


def test_groups_are_told_of_by_their_coordinator_whoever_leads_their_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_lag, "LOOK_MS", 0)
    with Cluster(3, config=CONFIG) as cluster, cluster.admin() as admin:
        cluster.create_topic("t", partitions=3, replication_factor=1)
        leaders = {one.leader for one in admin.describe_topics(["t"])[0].partitions}
        assert len(leaders) == 3, "a coordinator must ask others"
        with cluster.producer() as producer:
            for partition in range(3):
                for _ in range(10):
                    producer.send("t", b"x", partition=partition)
            producer.flush()

        def commit(group: str, *offsets: int) -> None:
            admin.alter_consumer_group_offsets(group, {TopicPartition("t", at): one for at, one in enumerate(offsets)})

        commit("done", 10, 10, 10)
        commit("stands", 1, 2, 10)
        commit(GROUP_PREFIX + "link", 0)
        for number in range(SAMPLES):
            commit(SLOW, number)
            commit("back", 9 if number == 0 else 3)
            with cluster.producer() as producer:
                producer.send("t", b"x", partition=0).result(60)
            found = scraped(cluster)
            assert (number == SAMPLES - 1) is bool(found.get(m.GROUP_PARTITIONS_BEHIND.exported)), "ten looks decide"
        lag = found[m.GROUP_LAG.exported]
        assert lag == {
            ("done", "t"): SAMPLES, ("stands", "t"): SAMPLES + 9 + 8, (SLOW, "t"): 11, ("back", "t"): SAMPLES + 7
        }  # fmt: skip
        assert found[m.GROUP_PARTITIONS_BEHIND.exported] == {
            ("done", "stopped"): 1, ("stands", "stopped"): 2, (SLOW, "slow"): 1, ("back", "rewound"): 1
        }  # fmt: skip
        seconds = found[m.GROUP_LAG_SECONDS.exported]
        assert 0 < seconds[SLOW, "t"] <= seconds["stands", "t"]
        assert found[m.GROUPS_UNWATCHED.exported].total() == 0

        commit("done", 10 + SAMPLES)
        assert scraped(cluster)[m.GROUP_LAG.exported]["done", "t"] == 0
        monkeypatch.setattr(group_lag, "POSITIONS_MAX", 0)
        found = scraped(cluster)
        assert m.GROUP_LAG.exported not in found
        assert found[m.GROUPS_UNWATCHED.exported].total() == 4
        monkeypatch.setattr(group_lag, "LOOK_MS", 600_000)
        commit("new", 0)
        assert scraped(cluster)[m.GROUPS_UNWATCHED.exported].total() == 4, "the last look was a moment ago"
