"""A broker's standing with the controller, as a table of states and answers."""

from __future__ import annotations

import pytest

from tidelog.broker.metadata.lifecycle_state import BrokerLifecycle, BrokerStanding, Identity
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, DirectoryId, NodeId, Offset
from tidelog.proto.calls.controller_api import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)

DIR = DirectoryId(b"d" * 16)
OK = BrokerHeartbeatResponse(ErrorCode.NONE, is_caught_up=True, is_fenced=False)
FENCED = BrokerHeartbeatResponse(ErrorCode.NONE, is_caught_up=True, is_fenced=True)


def lifecycle(previous: int = 7) -> BrokerLifecycle:
    identity = Identity("cluster", NodeId(1), b"i" * 16, (), None, ())
    return BrokerLifecycle(identity, BrokerEpoch(previous), 150, 20, 3000)


def ask(made: BrokerLifecycle, offset: int = 0) -> RegisterBrokerRequest | BrokerHeartbeatRequest | None:
    return made.request((DIR,), Offset(offset))


def running() -> BrokerLifecycle:
    made = lifecycle()
    made.registered(RegisterBrokerResponse(ErrorCode.NONE, BrokerEpoch(40)), 100)
    made.beaten(OK, 100)
    return made


def standing(made: BrokerLifecycle) -> BrokerStanding:
    return made.standing


def test_first_says_who_it_is_and_how_it_was_left() -> None:
    request = ask(lifecycle(previous=7))
    assert isinstance(request, RegisterBrokerRequest)
    assert request.previous_broker_epoch == 7
    assert request.log_dirs == (DIR,)


def test_beats_at_once_after_registration_and_then_each_interval() -> None:
    made = lifecycle()
    made.registered(RegisterBrokerResponse(ErrorCode.NONE, BrokerEpoch(40)), 100)
    assert standing(made) is BrokerStanding.FENCED
    assert made.due_ms() == 100
    made.beaten(OK, 110)
    assert standing(made) is BrokerStanding.RUNNING
    assert made.due_ms() == 260
    request = ask(made, 99)
    assert isinstance(request, BrokerHeartbeatRequest)
    assert (request.broker_epoch, request.current_metadata_offset, request.want_shut_down) == (40, 99, False)


def test_a_fenced_broker_asks_again_soon() -> None:
    made = running()
    made.beaten(FENCED, 200)
    made.beaten(FENCED, 300)
    assert standing(made) is BrokerStanding.FENCED
    assert made.due_ms() == 320


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_an_epoch_nobody_knows_makes_it_register_as_after_a_crash(code: ErrorCode) -> None:
    made = running()
    made.beaten(BrokerHeartbeatResponse(code), 500)
    assert standing(made) is BrokerStanding.REGISTERING
    request = ask(made)
    assert isinstance(request, RegisterBrokerRequest)
    assert request.previous_broker_epoch == -1


def test_a_taken_id_is_borne_with_for_the_grace_only() -> None:
    made = lifecycle()
    taken = RegisterBrokerResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION, error_message="held by 10.0.0.1")
    for now_ms in (1000, 2000, 3000, 3999):
        made.registered(taken, now_ms)
        assert standing(made) is BrokerStanding.REGISTERING
    made.registered(taken, 4000)
    assert standing(made) is BrokerStanding.FAILED
    assert "held by 10.0.0.1" in made.failure
    assert ask(made) is None


def test_the_grace_starts_anew_after_a_time_without_controllers() -> None:
    """The controller elected then gives the earlier process a new session (found by the simulation)."""
    made = lifecycle()
    taken = RegisterBrokerResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    made.registered(taken, 1000)
    made.unanswered(3000)
    for now_ms in (11_000, 12_000, 13_000):
        made.registered(taken, now_ms)
        assert standing(made) is BrokerStanding.REGISTERING
    made.registered(taken, 14_000)
    assert standing(made) is BrokerStanding.FAILED


def test_the_grace_starts_anew_for_a_process_that_stood_still() -> None:
    """Answers that it reads after the pause were sent before (found by the simulation: a start that was paused)."""
    made = lifecycle()
    taken = RegisterBrokerResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    made.registered(taken, 1000)
    made.registered(taken, 12_000)
    assert standing(made) is BrokerStanding.REGISTERING
    made.registered(RegisterBrokerResponse(ErrorCode.NONE, BrokerEpoch(1)), 12_020)
    assert standing(made) is BrokerStanding.FENCED


def test_the_grace_starts_anew_after_a_success() -> None:
    made = lifecycle()
    taken = RegisterBrokerResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    made.registered(taken, 0)
    made.registered(RegisterBrokerResponse(ErrorCode.NONE, BrokerEpoch(1)), 10)
    made.beaten(BrokerHeartbeatResponse(ErrorCode.STALE_BROKER_EPOCH), 5000)
    made.registered(taken, 5010)
    assert standing(made) is BrokerStanding.REGISTERING


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION])
def test_a_refusal_for_good_ends_it(code: ErrorCode) -> None:
    made = lifecycle()
    made.registered(RegisterBrokerResponse(code, error_message="expected cluster a, found b"), 0)
    assert standing(made) is BrokerStanding.FAILED
    assert code.name in made.failure


def test_a_controller_that_cannot_yet_is_asked_again() -> None:
    made = lifecycle()
    made.registered(RegisterBrokerResponse(ErrorCode.NOT_CONTROLLER), 50)
    assert standing(made) is BrokerStanding.REGISTERING
    assert made.due_ms() == 70


def test_an_unreachable_controller_changes_nothing_but_the_time() -> None:
    made = running()
    made.unanswered(400)
    assert standing(made) is BrokerStanding.RUNNING
    assert made.due_ms() == 420


def test_shutdown_waits_for_the_controllers_word() -> None:
    made = running()
    made.shut_down()
    request = ask(made)
    assert isinstance(request, BrokerHeartbeatRequest)
    assert request.want_shut_down
    made.beaten(OK, 500)
    assert standing(made) is BrokerStanding.SHUTTING_DOWN
    made.beaten(BrokerHeartbeatResponse(ErrorCode.NONE, should_shut_down=True), 600)
    assert standing(made) is BrokerStanding.STOPPED
    assert ask(made) is None


def test_shutdown_of_a_broker_that_was_replaced_ends_at_once() -> None:
    made = running()
    made.shut_down()
    made.beaten(BrokerHeartbeatResponse(ErrorCode.STALE_BROKER_EPOCH), 500)
    assert standing(made) is BrokerStanding.STOPPED


def test_shutdown_before_registration_needs_nobody() -> None:
    made = lifecycle()
    made.shut_down()
    assert standing(made) is BrokerStanding.STOPPED
