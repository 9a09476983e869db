"""Registration, heartbeats, fencing, shutdown, directories: the table in ``broker_changes.py``."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.metadata_quorum.image.image import directory_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LOST_DIRECTORY, BrokerEpoch, ControllerEpoch, DirectoryId, NodeId, Offset
from tidelog.proto.calls.api import CreateTopicsRequest, NewTopic, ReplicaAssignment
from tidelog.proto.calls.controller_api import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    DirectoryAssignment,
    Endpoint,
    RegisterBrokerRequest,
    SupportedFeature,
)

from .conftest import FEATURES, Bench

NONE = ErrorCode.NONE


def state(
    bench: Bench, name: str = "t", number: int = 0
) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(leader, ISR, ELR, last known ELR)"""
    found = bench.partition(name, number)
    return found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr


def directory(number: int) -> DirectoryId:
    return DirectoryId(number.to_bytes(16, "big"))


# --- Registration ---


def test_broker_epochs_rise_over_all_brokers(bench: Bench) -> None:
    assert [bench.register(node).broker_epoch for node in (1, 2, 3, 1)] == [1, 2, 3, 4]


def test_lost_answer_to_a_registration_does_not_make_a_new_epoch(bench: Bench) -> None:
    first = bench.register(1, incarnation=b"i" * 16)
    bench.beat(1)
    again = bench.register(1, incarnation=b"i" * 16)
    assert again.broker_epoch == first.broker_epoch
    assert not bench.controller.committed.brokers[NodeId(1)].fenced


def test_another_cluster_is_refused(bench: Bench) -> None:
    response = bench.register(1, cluster_id="other")
    assert response.error is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert response.error_message == "expected cluster id 'the-cluster', found 'other'"


def test_node_id_of_a_live_broker_is_refused(bench: Bench) -> None:
    bench.up(1)
    response = bench.register(1)
    assert response.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "found 1, under which another broker is alive" in response.error_message


def test_node_id_is_free_once_the_session_has_ended(bench: Bench) -> None:
    bench.up(1)
    bench.silence(1)
    assert bench.register(1).error is NONE


def test_node_id_is_free_from_the_moment_on_that_the_session_has_ended(bench: Bench) -> None:
    """Also before anybody has fenced the broker; its leaderships move with the registration."""
    bench.up(1, 2)
    bench.create("t", (1, 2))
    bench.now_ms += 699
    assert bench.register(1).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    bench.now_ms += 1
    assert not bench.controller.committed.brokers[NodeId(1)].fenced
    assert bench.register(1).error is NONE
    assert bench.controller.committed.brokers[NodeId(1)].fenced
    assert state(bench) == (2, (2,), (), ())


def test_old_epoch_is_refused_everywhere(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1, 2))
    old = bench.epochs[1]
    bench.silence(1)
    bench.register(1)
    beat = bench.beat(1, epoch=old)
    assert beat.error is ErrorCode.STALE_BROKER_EPOCH
    assert beat.error_message == f"expected broker epoch {bench.epochs[1]} of broker 1, found {old}"
    assert bench.beat(9).error is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"node_id": -3}, "expected a node id of at least 0, found -3"),
        ({"incarnation_id": b"x"}, "expected an incarnation id of 16 bytes, found 1"),
        ({"listeners": ()}, "expected an advertised listener, found none"),
        ({"log_dirs": ()}, "expected 1 to 100 log directories, found 0"),
        (
            {"log_dirs": (directory(1000), directory(1000))},
            "expected log directories of different ids, found one twice",
        ),
        ({"log_dirs": (LOST_DIRECTORY,)}, "expected the id of a log directory, found"),
        ({"log_dirs": (directory(101),)}, "expected log directories of its own, found one of broker 1"),
    ],
)
def test_bad_registrations(bench: Bench, change: dict[str, Any], text: str) -> None:
    bench.up(1)
    values: dict[str, Any] = {
        "cluster_id": "the-cluster",
        "node_id": NodeId(5),
        "incarnation_id": b"i" * 16,
        "listeners": (Endpoint("CLIENT", "127.0.0.1", 1),),
        "rack": None,
        "log_dirs": (directory(1000),),
        "features": (),
        "previous_broker_epoch": BrokerEpoch(-1),
    }
    response = bench.ask(RegisterBrokerRequest(**(values | change)))
    assert response.error is ErrorCode.INVALID_REGISTRATION
    assert text in response.error_message


def test_too_many_brokers() -> None:
    bench = Bench(controller_brokers_max="2")
    bench.up(1, 2)
    assert bench.register(3).error is ErrorCode.INVALID_REGISTRATION
    bench.silence(1)
    assert bench.register(1).error is NONE


def test_broker_that_lacks_a_feature_level_is_refused(bench: Bench) -> None:
    others = [feature for feature in FEATURES if feature.name != "metadata.version"]
    response = bench.ask(
        RegisterBrokerRequest(
            cluster_id="the-cluster",
            node_id=NodeId(5),
            incarnation_id=b"i" * 16,
            listeners=(Endpoint("CLIENT", "127.0.0.1", 1),),
            rack=None,
            log_dirs=(directory(1000),),
            features=(*others, SupportedFeature("metadata.version", 3, 4)),
            previous_broker_epoch=BrokerEpoch(-1),
        )
    )
    assert response.error is ErrorCode.UNSUPPORTED_VERSION
    assert response.error_message == "expected a broker that supports metadata.version level 2, found one for 3 to 4"


# --- Heartbeats ---


def test_unfenced_only_once_it_has_applied_its_own_registration(bench: Bench) -> None:
    bench.register(1)
    registered_at = bench.offset
    early = bench.beat(1, offset=registered_at - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    late = bench.beat(1, offset=registered_at)
    assert (late.is_caught_up, late.is_fenced) == (True, False)


def test_not_unfenced_while_it_wants_to_be_fenced(bench: Bench) -> None:
    bench.register(1)
    assert bench.beat(1, want_fence=True).is_fenced
    assert not bench.beat(1).is_fenced
    assert bench.beat(1, want_fence=True).is_fenced


def test_not_unfenced_before_its_registration_is_committed(bench: Bench) -> None:
    """The draft has the registration, the log not yet: no offset of the broker's can cover it."""
    request = RegisterBrokerRequest(
        "the-cluster",
        NodeId(1),
        b"i" * 16,
        (Endpoint("C", "h", 1),),
        None,
        (directory(101),),
        FEATURES,
        BrokerEpoch(-1),
    )
    decision = bench.controller.decide(request, bench.now_ms)
    bench.controller.append(decision.records)
    beat = BrokerHeartbeatRequest(NodeId(1), decision.response.broker_epoch, Offset(bench.offset + 1000), False, False)
    assert bench.controller.decide(beat, bench.now_ms).response.is_fenced


def test_silent_broker_is_fenced_and_its_leaderships_move(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3))
    bench.silence(1)
    assert bench.controller.committed.brokers[NodeId(1)].fenced
    assert state(bench) == (2, (2, 3), (), ())
    assert bench.partition("t").leader_epoch == 1


def test_broker_that_speaks_is_not_fenced(bench: Bench) -> None:
    bench.up(1, 2)
    for _ in range(10):
        bench.silence()
    assert not any(found.fenced for found in bench.controller.committed.brokers.values())


def test_session_ends_exactly_at_its_time(bench: Bench) -> None:
    bench.up(1)
    bench.now_ms += 699
    assert bench.controller.fence_silent(bench.now_ms) == []
    assert bench.controller.liveness.next_expiry_ms() == bench.now_ms + 1
    bench.now_ms += 1
    assert bench.controller.fence_silent(bench.now_ms)


def test_brokers_that_are_silent_at_the_same_check_are_fenced_together(bench: Bench) -> None:
    """None of them leads in between, and each that was in sync stays eligible."""
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1, 2)
    assert state(bench) == (3, (3,), (1, 2), ())
    assert bench.partition("t").leader_epoch == 1
    bench.silence(3)
    assert state(bench) == (-1, (), (1, 2, 3), ())


def test_all_silent_under_a_new_controller_lead_nothing_in_between(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    controller = bench.controller
    controller.resign()
    bench.take(controller.lead(ControllerEpoch(2), bench.now_ms))
    bench.silence(1, 2, 3)
    assert state(bench) == (-1, (), (1, 2, 3), ())
    assert bench.partition("t").leader_epoch == 1


def test_fencing_waits_for_those_that_seem_to_have_died_at_the_same_time(bench: Bench) -> None:
    """A session of 700 ms, a heartbeat every 250 ms."""
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.now_ms += 240
    bench.beat(2)
    bench.now_ms += 20
    bench.beat(3)
    bench.now_ms += 440  # broker 1's session ends; broker 2 may have died with it, broker 3 has not
    assert bench.controller.fence_silent(bench.now_ms) == []
    assert bench.controller.liveness.next_expiry_ms() == bench.now_ms + 240
    bench.beat(3)
    bench.now_ms += 240
    bench.take(bench.controller.fence_silent(bench.now_ms))
    assert state(bench) == (3, (3,), (1, 2), ())


def test_fencing_waits_no_longer_for_who_speaks_again(bench: Bench) -> None:
    bench.up(1, 2)
    bench.now_ms += 240
    bench.beat(2)
    bench.now_ms += 460
    assert bench.controller.fence_silent(bench.now_ms) == []
    bench.beat(2)
    bench.take(bench.controller.fence_silent(bench.now_ms))
    assert [node for node, found in bench.controller.committed.brokers.items() if found.fenced] == [1]


def test_stall_of_the_controller_costs_nobody_the_session(bench: Bench) -> None:
    bench.up(1)
    bench.now_ms += 5_000
    bench.controller.liveness.forgive(4_900, bench.now_ms)
    assert bench.controller.fence_silent(bench.now_ms) == []
    bench.now_ms += 600
    assert bench.controller.fence_silent(bench.now_ms)


def test_returning_broker_leads_what_only_it_can_lead(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1,))
    bench.create("u", (1, 2))
    bench.silence(1)
    assert state(bench, "t") == (-1, (), (1,), ())
    bench.beat(1)
    assert state(bench, "t") == (1, (1,), (), ())
    assert not bench.partition("t").leader_recovery
    assert state(bench, "u")[0] == 2


# --- Clean and unclean stops (KIP-966) ---


def test_clean_restart_keeps_the_place_in_the_elr(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1, 2)
    assert state(bench) == (3, (3,), (1, 2), ())
    bench.register(2, previous=bench.epochs[2])
    assert state(bench) == (3, (3,), (1, 2), ())


@pytest.mark.parametrize("previous", [-1, 1, 77])
def test_unclean_restart_leaves_isr_and_elr_before_it_may_lead(bench: Bench, previous: int) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1, 2)
    bench.register(2, previous=previous)
    assert state(bench) == (3, (3,), (1,), (2,))
    bench.silence(3)
    bench.beat(2)
    assert state(bench) == (-1, (), (1, 3), (2,)), "a broker without the committed tail became leader"
    bench.beat(3)
    assert state(bench) == (3, (3,), (1,), (2,))


def test_unclean_restart_of_the_only_replica_recovers_as_last_known_leader(bench: Bench) -> None:
    bench.up(1)
    bench.create("t", (1,))
    bench.silence(1)
    bench.register(1)
    assert state(bench) == (-1, (), (), (1,))
    bench.beat(1)
    assert state(bench) == (1, (1,), (), ())
    assert bench.partition("t").leader_recovery
    assert bench.controller.unclean_elections == 1


def test_all_killed_one_after_the_other_those_that_had_everything_are_remembered(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1)
    bench.silence(2)
    bench.silence(3)
    assert state(bench) == (-1, (), (2, 3), ())
    bench.up(2)
    assert state(bench) == (-1, (), (3,), (2,))
    bench.up(1)
    assert state(bench) == (-1, (), (3,), (2,)), "what was committed without it makes it no candidate"
    bench.up(3)
    assert state(bench) == (-1, (), (), (2, 3)), "which of the two has lost something is not known yet"


def test_wiped_disk_under_the_same_id_is_no_last_known_leader(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1,))
    bench.create("u", (1, 2))
    bench.silence(1)
    bench.up(1, dirs=(901,))
    assert state(bench, "t") == (-1, (), (), ()), "an empty replica became leader"
    assert state(bench, "u") == (2, (2,), (), ())
    assert directory_of(bench.partition("t"), NodeId(1)) == directory(901)
    # It may join again as the follower it is.
    assert bench.alter_isr("u", (2, 1)).error is NONE


def test_wiped_disk_leads_where_unclean_elections_are_allowed(bench: Bench) -> None:
    bench.up(1)
    bench.create("t", (1,), unclean_leader_election_enable="true")
    bench.silence(1)
    bench.up(1, dirs=(901,))
    assert state(bench) == (1, (1,), (), ())
    assert bench.partition("t").leader_recovery


# --- Controlled shutdown ---


def test_controlled_shutdown_moves_leaders_before_it_lets_go(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1, 2))
    asked = bench.beat(1, want_shut_down=True)
    assert (asked.is_fenced, asked.should_shut_down) == (False, False)
    begun = bench.offset
    bench.controller.shutdown_committed(NodeId(1), Offset(bench.offset))
    assert state(bench) == (2, (2,), (), ())
    assert bench.controller.committed.brokers[NodeId(1)].in_controlled_shutdown
    # Broker 2 has not seen it yet: somebody may still send to broker 1.
    bench.beat(2, offset=begun - 1)
    assert not bench.beat(1, want_shut_down=True).should_shut_down
    bench.beat(2, offset=begun)
    done = bench.beat(1, want_shut_down=True)
    assert (done.is_fenced, done.should_shut_down) == (True, True)
    assert bench.controller.committed.brokers[NodeId(1)].fenced


def test_broker_without_leaderships_shuts_down_at_once(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1, 2))
    assert bench.beat(2, want_shut_down=True).should_shut_down
    assert state(bench) == (1, (1,), (), ())


def test_fenced_broker_shuts_down_at_once(bench: Bench) -> None:
    bench.register(1)
    answer = bench.beat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)


def test_only_replica_shuts_down_and_is_eligible_after(bench: Bench) -> None:
    bench.up(1)
    bench.create("t", (1,))
    bench.beat(1, want_shut_down=True)
    bench.controller.shutdown_committed(NodeId(1), Offset(bench.offset))
    assert state(bench) == (-1, (), (1,), ())
    assert bench.beat(1, want_shut_down=True).should_shut_down
    bench.up(1, previous=bench.epochs[1])
    assert state(bench) == (1, (1,), (), ())
    assert not bench.partition("t").leader_recovery


def test_fenced_broker_is_not_in_controlled_shutdown_any_more(bench: Bench) -> None:
    """Found by the invariants: it was unfenced again and led, while it counted as shutting down."""
    bench.up(1, 2)
    bench.create("t", (1,))
    bench.beat(1, want_shut_down=True)
    bench.silence(1)
    assert bench.controller.committed.brokers[NodeId(1)].fenced
    bench.beat(1)
    assert bench.controller.committed.is_active(NodeId(1))
    assert state(bench) == (1, (1,), (), ())


def test_shutting_down_broker_gets_no_new_replicas(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2))
    bench.beat(1, want_shut_down=True)
    assert bench.create("u", partitions=9, factor=2).error is NONE
    assert all(1 not in bench.partition("u", number).replicas for number in range(9))
    assert bench.create("v", partitions=1, factor=3).error is ErrorCode.INVALID_REPLICATION_FACTOR


# --- Directories (KIP-858) ---


def assign(bench: Bench, node: int, *items: tuple[int, str, int]) -> ErrorCode:
    topics = bench.controller.committed
    response = bench.ask(
        AssignReplicasToDirsRequest(
            NodeId(node),
            bench.epochs[node],
            tuple(DirectoryAssignment(directory(number), topics.topic_ids[name], part) for number, name, part in items),
        )
    )
    error: ErrorCode = response.error
    return error


def test_new_replica_stands_on_the_only_directory(bench: Bench) -> None:
    bench.up(1)
    bench.up(2, dirs=(201, 202))
    bench.create("t", (1, 2))
    assert bench.partition("t").directories == (directory(101), directory(0))
    assert assign(bench, 2, (202, "t", 0)) is NONE
    assert bench.partition("t").directories == (directory(101), directory(202))


def test_failed_directory_costs_only_its_own_leaderships(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.up(2)
    bench.create("t", (1, 2), (1, 2))
    assign(bench, 1, (11, "t", 0), (12, "t", 1))
    answer = bench.beat(1, offline=(11,))
    assert not answer.is_fenced
    assert state(bench, number=0) == (2, (2,), (), ())
    assert state(bench, number=1)[0] == 1
    assert bench.controller.committed.brokers[NodeId(1)].log_dirs == (directory(12),)
    offset = bench.offset
    bench.beat(1, offline=(11,))
    assert bench.offset == offset, "the same failure was written down twice"


def test_replica_on_a_failed_directory_does_not_lead_again(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,))
    assign(bench, 1, (11, "t", 0))
    bench.beat(1, offline=(11,))
    assert state(bench)[0] == -1
    bench.silence(1)
    bench.beat(1)
    assert state(bench)[0] == -1


def test_restart_without_one_of_two_directories_does_not_make_its_replicas_anew(bench: Bench) -> None:
    """They may come back with their directory; only the sole directory of a broker is taken for replaced."""
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,))
    assign(bench, 1, (11, "t", 0))
    bench.silence(1)
    bench.up(1, dirs=(12,))
    assert directory_of(bench.partition("t"), NodeId(1)) == directory(11)
    assert state(bench) == (-1, (), (), (1,))
    bench.silence(1)
    bench.up(1, dirs=(11, 12))
    assert state(bench) == (1, (1,), (), ())


def test_directory_that_comes_back_with_a_clean_restart_leads_again(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,))
    assign(bench, 1, (11, "t", 0))
    bench.beat(1, offline=(11,))
    bench.silence(1)
    bench.up(1, dirs=(11, 12), previous=bench.epochs[1])
    assert state(bench)[0] == 1


def test_replica_made_anew_after_its_directory_was_lost_is_not_eligible(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.up(2)
    bench.create("t", (1, 2), min_insync_replicas="2")
    assign(bench, 1, (11, "t", 0))
    bench.beat(1, offline=(11,))
    assert state(bench) == (2, (2,), (1,), ())
    assign(bench, 1, (12, "t", 0))
    assert state(bench) == (2, (2,), (), ())


def test_replica_made_anew_leads_at_once_where_unclean_elections_are_allowed(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,), unclean_leader_election_enable="true")
    assign(bench, 1, (11, "t", 0))
    bench.beat(1, offline=(11,))
    assert state(bench)[0] == -1
    assign(bench, 1, (12, "t", 0))
    assert state(bench) == (1, (1,), (), ())
    assert bench.partition("t").leader_recovery


def test_a_replica_on_a_failed_directory_may_not_join(bench: Bench) -> None:
    """The leader has not heard of the failure yet, and asks for what it had before."""
    bench.up(1)
    bench.up(2, dirs=(21, 22))
    bench.create("t", (1, 2), (1, 2))
    assign(bench, 2, (21, "t", 0), (22, "t", 1))
    bench.beat(2, offline=(21,))
    assert state(bench, number=0)[1] == (1,)
    assert bench.alter_isr("t", (1, 2)).error is ErrorCode.INELIGIBLE_REPLICA
    assert state(bench, number=0)[1] == (1,)
    bench.alter_isr("t", (1,), number=1)
    assert bench.alter_isr("t", (1, 2), number=1).error is NONE, "its other directory works"
    bench.silence(2)
    bench.up(2, dirs=(21, 22))
    assert bench.alter_isr("t", (1, 2)).error is NONE, "the directory is back"


def test_a_broker_whose_last_directory_failed_is_in_sync_nowhere_and_holds_nothing_new(bench: Bench) -> None:
    """Until its session ends it is not fenced; a replica whose directory it never named counts too."""
    bench.up(1)
    bench.up(2, dirs=(21, 22))
    bench.create("t", (2, 1))
    bench.beat(2, offline=(21, 22))
    assert state(bench)[:2] == (1, (1,))
    assert not bench.controller.committed.brokers[NodeId(2)].fenced
    assert bench.alter_isr("t", (1, 2)).error is ErrorCode.INELIGIBLE_REPLICA
    bench.create("u", (2, 1))
    assert state(bench, "u")[:2] == (1, (1,))
    bench.create("v", partitions=4, factor=2)
    assert {state(bench, "v", number)[:2] for number in range(4)} == {(1, (1,))}
    assert {bench.partition("v", number).replicas for number in range(4)} == {(1, 2)}, "it is to lead what is new"


def test_a_registration_that_is_repeated_without_a_directory_takes_its_replicas_out_of_the_isr(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12), incarnation=b"i" * 16)
    bench.up(2)
    bench.create("t", (1, 2), (1, 2))
    assign(bench, 1, (11, "t", 0), (12, "t", 1))
    bench.register(1, dirs=(12,), incarnation=b"i" * 16)
    assert state(bench, number=0)[:2] == (2, (2,))
    assert state(bench, number=1)[:2] == (1, (1, 2))


def test_replica_said_to_stand_on_a_failed_directory_leaves_the_isr(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.up(2)
    bench.create("t", (1, 2))
    bench.beat(1, offline=(11,))
    assert state(bench)[0] == 1
    assign(bench, 1, (11, "t", 0))
    assert state(bench) == (2, (2,), (), ())
    assert directory_of(bench.partition("t"), NodeId(1)) == LOST_DIRECTORY


def test_replica_moved_between_working_directories_stays_in_the_isr(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.up(2)
    bench.create("t", (2, 1))
    assign(bench, 1, (11, "t", 0))
    assign(bench, 1, (12, "t", 0))
    assert state(bench)[1] == (2, 1)
    assert directory_of(bench.partition("t"), NodeId(1)) == directory(12)


def test_assignments_of_a_stale_broker_are_refused(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,))
    bench.epochs[1] = BrokerEpoch(99)
    assert assign(bench, 1, (11, "t", 0)) is ErrorCode.STALE_BROKER_EPOCH


def test_assignment_of_a_partition_that_is_gone_is_passed_over(bench: Bench) -> None:
    bench.up(1, dirs=(11, 12))
    bench.create("t", (1,))
    assert assign(bench, 1, (11, "t", 5)) is NONE


# --- A new controller ---


def test_new_controller_gives_everybody_a_fresh_session(bench: Bench) -> None:
    bench.up(1, 2)
    controller = bench.controller
    controller.resign()
    bench.now_ms += 60_000
    bench.take(controller.lead(ControllerEpoch(controller.committed.epoch + 1), bench.now_ms))
    assert controller.fence_silent(bench.now_ms + 699) == []
    assert controller.fence_silent(bench.now_ms + 700)


def test_new_controller_finishes_what_the_last_one_left_half_done(bench: Bench) -> None:
    """A topic whose creation stopped between two entries goes; an election that was not written is made up for."""
    bench.up(1)
    bench.create("t", (1,))
    bench.silence(1)
    controller = bench.controller
    unfence = controller._brokers.unfence(controller.draft, NodeId(1))
    bench.take(unfence[:1])
    bench.take(tuple(controller._topics.create(controller.draft, creation("half", 1), bench.now_ms).records[:1]))
    assert state(bench)[0] == -1
    assert controller.committed.unpublished
    controller.resign()
    bench.take(controller.lead(ControllerEpoch(controller.committed.epoch + 1), bench.now_ms))
    assert state(bench)[0] == 1
    assert not controller.committed.unpublished


def creation(name: str, node: int) -> CreateTopicsRequest:
    assignments = (ReplicaAssignment(0, (NodeId(node),)), ReplicaAssignment(1, (NodeId(node),)))
    return CreateTopicsRequest((NewTopic(name, assignments=assignments),))
