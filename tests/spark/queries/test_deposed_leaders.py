"""A replaced leader that does not know it yet has fewer records than a query has read: none is taken for lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from tidelog.client.admin.blocking import Admin
from tidelog.client.admin.types import ListedOffset, OffsetSpec
from tidelog.client.errors import BrokerNotAvailableError
from tidelog.model.ids import Offset, TopicPartition
from tidelog.spark_connector.cluster_offsets import ClusterOffsets
from tidelog.spark_connector.offsets import SourceOffset, fallen
from tidelog.spark_connector.options import SourceOptions

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
IDS = {"t": "aa"}
KNOWN = SourceOffset({P: 40, Q: 7}, IDS, leader_epochs={P: 3})


class Leaders:
    """Answers what it is given, one after the other: offset and leader epoch of partition 0."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self.answers = list(answers)

    def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], *, read_committed: bool
    ) -> dict[TopicPartition, ListedOffset]:
        assert read_committed
        offset, epoch = self.answers.pop(0)
        return {at: ListedOffset(Offset(offset if at == P else 9), -1, epoch if at == P else 0) for at in specs}


def asked(leaders: Leaders, slept: list[float] | None = None) -> SourceOffset:
    options = SourceOptions.of({"tidelog.bootstrap.servers": "localhost:1", "subscribe": "t"}, streaming=True)
    cluster = ClusterOffsets(options, sleep=([] if slept is None else slept).append)
    cluster._admin = cast(Admin, leaders)
    return cluster.latest([P, Q], KNOWN)


def test_who_has_not_heard_of_it_is_asked_again() -> None:
    slept: list[float] = []
    found = asked(Leaders((38, 2), (41, 4)), slept)
    assert (found.offsets, found.leader_epochs) == ({P: 41, Q: 9}, {P: 4, Q: 0})
    assert slept == [1.0]


def test_what_is_decided_is_so_whoever_says_it() -> None:
    assert asked(Leaders((45, 2))).offsets[P] == 45


def test_who_never_hears_of_it_ends_the_query_before_the_checkpoint_has_it() -> None:
    with pytest.raises(BrokerNotAvailableError, match=r"\[t-0\]: the leader that answers was replaced"):
        asked(Leaders(*[(38, 2)] * 3))


@pytest.mark.parametrize("epoch", [3, 4])
def test_what_a_newer_leader_lacks_is_lost(epoch: int) -> None:
    found = SourceOffset(asked(Leaders(*[(38, epoch)] * 3)).offsets, IDS)
    (text,) = fallen(KNOWN, found)
    assert text.startswith("Partition t-0 offset was changed from 40 to 38.")


def test_nothing_of_another_topic_by_the_name_is_known() -> None:
    anew = SourceOffset({P: 0, Q: 0}, {"t": "bb"})
    assert KNOWN.of_those_in(anew).offsets == {}
    assert fallen(KNOWN, anew) == []
    assert anew.no_older_than(KNOWN).leader_epochs == {}


def test_the_newest_leader_is_remembered() -> None:
    later = SourceOffset({P: 45, Q: 9}, IDS, leader_epochs={P: 2, Q: 1}).no_older_than(KNOWN)
    assert later.leader_epochs == {P: 3, Q: 1}
    text = later.to_json()
    assert text["leaderEpochs"] == {"t": {"0": 3, "1": 1}}
    assert SourceOffset.from_json(text) == later
    assert "leaderEpochs" not in SourceOffset({P: 45}, IDS, leader_epochs={P: -1, Q: 5}).to_json()
