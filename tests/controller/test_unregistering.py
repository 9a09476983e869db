"""A broker that is gone for good is forgotten; a live one is not."""

from __future__ import annotations

import pytest

from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.model.ids import NodeId, Offset
from tidelog.proto.calls.api import (
    FeatureUpdate,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.controller_api import RegisterControllerRequest, SupportedFeature

from .conftest import CLUSTER_ID, FEATURES, Bench

NONE = ErrorCode.NONE


def unregister(bench: Bench, node: int) -> UnregisterBrokerResponse:
    return bench.ask(UnregisterBrokerRequest(NodeId(node)))


def test_a_live_broker_is_refused_with_the_way_out(bench: Bench) -> None:
    bench.up(1, 2)
    refused = unregister(bench, 1)
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "move its replicas to others, stop it, and try again" in refused.error_message
    bench.beat(1, want_shut_down=True)
    assert unregister(bench, 1).error is NONE
    assert unregister(bench, 1).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert unregister(bench, 7).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert set(bench.controller.committed.brokers) == {2}


def test_it_counts_no_more_and_its_epochs_stay_used(bench: Bench) -> None:
    bench.up(1, 2, 3)
    last = bench.epochs[3]
    bench.silence(3)
    assert unregister(bench, 3).error is NONE
    image = bench.controller.committed
    assert decode_snapshot(encode_snapshot(image)) == image
    bench.create("t", partitions=6, factor=2)
    assert all(3 not in bench.partition("t", number).replicas for number in range(6))
    # A controlled shutdown waits for every active broker, and not for one that is gone.
    bench.create("u", (1, 2))
    bench.beat(1, want_shut_down=True)
    bench.controller.shutdown_committed(NodeId(1), Offset(bench.offset))
    bench.beat(2)
    assert bench.beat(1, want_shut_down=True).should_shut_down
    assert bench.register(3).broker_epoch > last


def test_a_broker_that_was_away_registers_again(bench: Bench) -> None:
    bench.up(1)
    bench.silence(1)
    unregister(bench, 1)
    assert bench.beat(1).error is ErrorCode.STALE_BROKER_EPOCH
    bench.up(1)
    assert bench.controller.committed.is_active(NodeId(1))


def test_partitions_keep_it_among_their_replicas_and_it_joins_as_after_an_unclean_stop(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1, 2))
    bench.create("alone", (1,))
    stopped = bench.epochs[1]
    bench.beat(1, want_shut_down=True)
    bench.controller.shutdown_committed(NodeId(1), Offset(bench.offset))
    bench.beat(2)
    bench.beat(1, want_shut_down=True)
    assert unregister(bench, 1).error is NONE
    partition = bench.partition("t")
    assert (partition.replicas, partition.leader, partition.isr) == ((1, 2), 2, (2,))
    assert bench.partition("alone").eligible_leader_replicas == (1,)
    bench.up(1, previous=stopped)
    assert bench.alter_isr("t", (2, 1)).error is NONE
    found = bench.partition("alone")
    assert (found.leader, found.leader_recovery) == (1, True), "nobody knows that it stopped cleanly"


def test_it_holds_up_no_feature_upgrade(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUPPORTED_FEATURES, "metadata.version", (1, 3))
    known = tuple(SupportedFeature(one.name, one.level_min, max(one.level_max, 3)) for one in FEATURES)
    bench.ask(RegisterControllerRequest(CLUSTER_ID, NodeId(1), known))
    bench.up(3)
    bench.silence(3)
    request = UpdateFeaturesRequest((FeatureUpdate("metadata.version", 3),))
    assert bench.ask(request).error is ErrorCode.INVALID_UPDATE_VERSION
    unregister(bench, 3)
    assert bench.ask(request).error is NONE
