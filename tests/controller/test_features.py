"""Levels of features: every broker and every controller is asked before one is raised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tests.controller.conftest import CLUSTER_ID
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.features import MEANINGS, SAFE_DOWNGRADE, SUPPORTED_FEATURES, UNSAFE_DOWNGRADE, UPGRADE
from tidelog.model.ids import ControllerEpoch, NodeId
from tidelog.proto.calls.api import FeatureUpdate, UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.proto.calls.controller_api import RegisterControllerRequest, RegisterControllerResponse, SupportedFeature
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest, ScramUpsertion
from tidelog.proto.logs.metadata_records import ConfigRecord, MetadataRecord
from tidelog.proto.logs.record_levels import CONSUMER_PROTOCOL, DIRECTORIES_VOTE, RECORD_LEVELS, REQUEST_GATES

from .conftest import Bench

NAME = "metadata.version"
TRANSACTIONS = "transaction.version"
GROUPS = "group.version"
OTHERS = {GROUPS: (GROUPS, 0, 1), TRANSACTIONS: (TRANSACTIONS, 0, 2)}
"""What a controller of the tests knows besides."""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """This version knows the levels 1 to 4."""
    monkeypatch.setitem(SUPPORTED_FEATURES, NAME, (1, 4))


def register(
    bench: Bench, node: int, *features: tuple[str, int, int], cluster_id: str = CLUSTER_ID
) -> RegisterControllerResponse:
    made = tuple(SupportedFeature(*found) for found in {**OTHERS, **{one[0]: one for one in features}}.values())
    return bench.ask(RegisterControllerRequest(cluster_id, NodeId(node), made))


def raise_to(bench: Bench, level: int) -> UpdateFeaturesResponse:
    return change(bench, (NAME, level))


def change(bench: Bench, *levels: tuple[str, int], kind: str = UPGRADE) -> UpdateFeaturesResponse:
    return bench.ask(UpdateFeaturesRequest(tuple(FeatureUpdate(*level, kind) for level in levels)))


def test_a_controller_says_what_it_knows_and_a_snapshot_keeps_it(bench: Bench) -> None:
    assert register(bench, 1, (NAME, 1, 3)).error is ErrorCode.NONE
    offset = bench.offset
    assert register(bench, 1, (NAME, 1, 3)).error is ErrorCode.NONE
    assert bench.offset == offset, "what is known already was written again"
    register(bench, 1, (NAME, 1, 4))
    image = bench.controller.committed
    assert {node: record.features for node, record in image.controllers.items()} == {
        1: (*(SupportedFeature(*other) for other in OTHERS.values()), SupportedFeature(NAME, 1, 4))
    }
    assert decode_snapshot(encode_snapshot(image)) == image


def test_a_level_that_a_controller_does_not_know_is_refused(bench: Bench, known: None) -> None:
    register(bench, 1, (NAME, 1, 4))
    register(bench, 2, (NAME, 1, 3))
    refused = raise_to(bench, 4)
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert (
        refused.error_message
        == f"{NAME}: expected a level that controller 2 supports, 1 to 3, found 4; upgrade that node first; no level "
        "was changed"
    )
    assert raise_to(bench, 3).error is ErrorCode.NONE
    assert bench.controller.committed.features[NAME] == 3
    register(bench, 2, (NAME, 1, 4))
    assert raise_to(bench, 4).error is ErrorCode.NONE


def test_a_controller_that_said_nothing_stands_in_the_way(bench: Bench, known: None) -> None:
    refused = raise_to(bench, 3)
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert (
        "which levels it knows, found none said by 1: it is down, or of release 0.1; start it, or"
        in refused.error_message
    )
    assert raise_to(bench, 2).error is ErrorCode.NONE, "the level in use needs nobody's word"


def test_the_voters_of_the_log_are_asked_whatever_the_configuration_names(bench: Bench, known: None) -> None:
    """The bench's configuration names node 1 alone."""
    register(bench, 1, (NAME, 1, 4))
    bench.voters = [NodeId(1), NodeId(2)]
    assert "found none said by 2" in raise_to(bench, 3).error_message
    bench.voters = [NodeId(2)]
    register(bench, 2, (NAME, 1, 3))
    assert raise_to(bench, 3).error is ErrorCode.NONE
    assert "controller 2 supports, 1 to 3, found 4" in raise_to(bench, 4).error_message


def test_a_level_that_a_broker_does_not_know_is_refused(bench: Bench, known: None) -> None:
    register(bench, 1, (NAME, 1, 4))
    bench.up(1)
    refused = raise_to(bench, 3)
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert "that broker 1 supports, " in refused.error_message


def test_a_controller_without_a_level_in_use_may_not_register(bench: Bench, known: None) -> None:
    register(bench, 1, (NAME, 1, 4))
    raise_to(bench, 3)
    refused = register(bench, 2, (NAME, 1, 2))
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert refused.error_message == f"expected a controller that supports {NAME} level 3, found one for 1 to 2"
    assert 2 not in bench.controller.committed.controllers
    assert register(bench, 2, (NAME, 1, 3), cluster_id="another").error is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_levels_go_down_only_where_that_is_asked_for(bench: Bench) -> None:
    register(bench, 1, (NAME, 1, 2))
    refused = change(bench, (TRANSACTIONS, 1))
    assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
    assert "a downgrade must be asked for as one" in refused.error_message
    assert change(bench, (TRANSACTIONS, 1), kind="any").error is ErrorCode.INVALID_UPDATE_VERSION
    for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        assert change(bench, (TRANSACTIONS, 0), kind=kind).error is ErrorCode.NONE
        image = bench.controller.committed
        assert dict(image.features) == {NAME: 2, GROUPS: 1}, "a feature of level 0 is off, and not there"
        assert decode_snapshot(encode_snapshot(image)) == image
        refused = change(bench, (TRANSACTIONS, 2), kind=kind)
        assert "that is no downgrade" in refused.error_message
        assert change(bench, (TRANSACTIONS, 2)).error is ErrorCode.NONE


def test_all_levels_change_or_none(bench: Bench, known: None) -> None:
    register(bench, 1, (NAME, 1, 2))
    change(bench, (TRANSACTIONS, 0), kind=SAFE_DOWNGRADE)
    assert change(bench, (TRANSACTIONS, 2), (NAME, 3)).error is ErrorCode.INVALID_UPDATE_VERSION
    assert dict(bench.controller.committed.features) == {NAME: 2, GROUPS: 1}
    twice = change(bench, (TRANSACTIONS, 2), (TRANSACTIONS, 2))
    assert twice.error is ErrorCode.INVALID_REQUEST
    offset = bench.offset
    checked = bench.ask(UpdateFeaturesRequest((FeatureUpdate(TRANSACTIONS, 2),), validate_only=True))
    assert (checked.error, bench.offset) == (ErrorCode.NONE, offset)


def test_a_record_waits_for_its_level(bench: Bench, known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register(bench, 1, (NAME, 1, 4))
    monkeypatch.setitem(RECORD_LEVELS, ConfigRecord, 4)
    for level in (2, 3):
        assert raise_to(bench, level).error is ErrorCode.NONE
        refused = bench.set("broker", "", "log.retention.ms", "9")
        assert refused.error is ErrorCode.UNSUPPORTED_VERSION
        assert f"expected {NAME} 4 or higher, found {level}: run `tidelog features upgrade`" in refused.error_message
        assert not bench.controller.committed.configs
    assert raise_to(bench, 4).error is ErrorCode.NONE
    assert bench.set("broker", "", "log.retention.ms", "9").error is ErrorCode.NONE


def test_a_level_whose_records_were_written_stays(bench: Bench, known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register(bench, 1, (NAME, 1, 4))
    monkeypatch.setitem(RECORD_LEVELS, ConfigRecord, 3)
    raise_to(bench, 4)
    assert change(bench, (NAME, 2), kind=SAFE_DOWNGRADE).error is ErrorCode.NONE, "nothing of level 3 was written"
    raise_to(bench, 4)
    bench.set("broker", "", "log.retention.ms", "9")
    bench.set("broker", "", "log.retention.ms", None, "delete")
    image = bench.controller.committed
    assert not image.configs, "nothing of it is left, but the log has it"
    bench.controller.load(decode_snapshot(encode_snapshot(image)))
    bench.take(bench.controller.lead(ControllerEpoch(1), bench.now_ms))
    for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        refused = change(bench, (NAME, 2), kind=kind)
        assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
        assert "expected at least level 3, found 2" in refused.error_message
        assert "ConfigRecord" in refused.error_message
    assert change(bench, (NAME, 3), kind=SAFE_DOWNGRADE).error is ErrorCode.NONE


def test_a_cluster_that_is_there_keeps_its_levels(bench: Bench, known: None) -> None:
    """Its nodes have just been replaced by newer ones; all of them may still be replaced by the older ones."""
    before = dict(bench.controller.committed.features)
    bench.controller.resign()
    bench.take(bench.controller.lead(ControllerEpoch(1), bench.now_ms))
    assert dict(bench.controller.committed.features) == before


def test_a_broker_that_is_gone_is_named_with_the_way_out(bench: Bench, known: None) -> None:
    register(bench, 1, (NAME, 1, 4))
    bench.up(1)
    assert "unregister" not in raise_to(bench, 3).error_message
    bench.silence(1)
    register(bench, 1, (NAME, 1, 4))
    assert "if it is gone for good, run `tidelog brokers unregister 1`" in raise_to(bench, 3).error_message


# --- a cluster that release 0.1 made ---


def made_by_0_1(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its nodes have just been replaced."""
    with monkeypatch.context() as before:
        before.setitem(SUPPORTED_FEATURES, NAME, (1, 1))
        before.setitem(SUPPORTED_FEATURES, TRANSACTIONS, (0, 0))
        before.setitem(SUPPORTED_FEATURES, GROUPS, (0, 0))
        bench = Bench()
    assert dict(bench.controller.committed.features) == {NAME: 1}
    return bench


def test_below_the_level_of_its_record_a_controllers_word_is_kept_by_the_active_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = made_by_0_1(monkeypatch)
    bench.voters = [NodeId(1), NodeId(2)]
    offset = bench.offset
    for node in (1, 2):
        assert register(bench, node, (NAME, 1, 2)).error is ErrorCode.NONE
    assert bench.offset == offset, "release 0.1 stops at such a record"
    bench.in_touch = [NodeId(1)]
    assert "found none said by 2: it is down, or of release 0.1" in raise_to(bench, 2).error_message
    bench.in_touch = [NodeId(1), NodeId(2)]
    bench.controller.resign()
    bench.take(bench.controller.lead(ControllerEpoch(1), bench.now_ms))
    assert "found none said by 1" in raise_to(bench, 2).error_message, "another controller may have been active"
    for node in (1, 2):
        register(bench, node, (NAME, 1, 2))
    assert change(bench, (NAME, 2), (TRANSACTIONS, 2)).error is ErrorCode.NONE
    assert not bench.controller.committed.controllers
    register(bench, 2, (NAME, 1, 2))
    assert set(bench.controller.committed.controllers) == {2}, "now there is a record for it"


def test_what_release_0_1_cannot_read_is_refused_until_the_level_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = made_by_0_1(monkeypatch)
    user = ScramUpsertion("alice", 1, 4096, b"salt" * 4, b"s" * 32)
    refused = bench.ask(AlterUserScramCredentialsRequest((), (user,)))
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert f"expected {NAME} 2 or higher, found 1: run `tidelog features upgrade`" in refused.error_message
    assert not bench.controller.committed.users
    register(bench, 1, (NAME, 1, 2))
    assert change(bench, (NAME, 2), kind="").error is ErrorCode.NONE, "a client of 0.1 says no kind"
    assert bench.ask(AlterUserScramCredentialsRequest((), (user,))).results[0].error is ErrorCode.NONE
    assert "expected at least level 2" in change(bench, (NAME, 1), kind=SAFE_DOWNGRADE).error_message


def test_kinds_of_records_have_their_gates() -> None:
    """The kinds of release 0.1. A new kind gets a level of ``metadata.version`` in ``RECORD_LEVELS``: older nodes stop
    at it."""
    first = {kind.__name__ for kind in get_args(MetadataRecord) if kind not in RECORD_LEVELS}
    assert first == {
        "RegisterBrokerRecord", "BrokerRegistrationChangeRecord", "UnregisterBrokerRecord", "TopicRecord",
        "RemoveTopicRecord", "PartitionRecord", "PartitionChangeRecord", "ConfigRecord", "ProducerIdsRecord",
        "FeatureLevelRecord", "AccessControlEntryRecord", "RemoveAccessControlEntryRecord", "ClientQuotaRecord",
    }  # fmt: skip
    assert SUPPORTED_FEATURES[NAME] == (1, max(RECORD_LEVELS.values(), default=1))
    assert set(MEANINGS) == {
        (name, level) for name, (_, high) in SUPPORTED_FEATURES.items() for level in range(1, high + 1)
    }


def test_gates_are_in_one_table_and_say_what_to_do() -> None:
    """Nothing else compares a level in use with a number."""
    root = Path(__file__).parents[2]
    by_hand = [
        f"{path.relative_to(root)}: {line.strip()}"
        for folder in ("broker", "groups", "metadata_quorum", "replication", "storage", "transactions")
        for path in (root / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"features(\.get\(|\[)\w*(_VERSION\b|\"\w+\.version)", line)
    ]
    assert by_hand == []
    gates = [DIRECTORIES_VOTE, *REQUEST_GATES.values()]
    for gate in gates:
        low, high = SUPPORTED_FEATURES[gate.feature]
        assert low < gate.level <= high
        below = {gate.feature: gate.level - 1}
        assert not gate.is_open(below)
        fault = gate.fault(below)
        assert fault is not None
        assert f"expected {gate.feature} {gate.level} or higher, found {gate.level - 1}: run `tidelog feat" in fault
        for level in range(gate.level, high + 1):
            assert gate.fault({gate.feature: level}) is None
    assert not CONSUMER_PROTOCOL.is_open({})
