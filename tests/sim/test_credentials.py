"""Credentials in virtual time: passwords and delegation tokens come and go while nodes fail, and a client that is
served after their end shows."""

from __future__ import annotations

import pytest

from tests.sim.showing import shows
from tidelog.broker.access.logins import LoggedIn
from tidelog.chaos.simulated.scenarios.clusters import CREDENTIALS
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario
from tidelog.chaos.simulated.workloads.credential_work import LIFETIME_MS, MECHANISM, Credential, is_good
from tidelog.chaos.simulated.world.scenario import Fault
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import ControllerEpoch, Offset
from tidelog.proto.logs.metadata_records import DelegationTokenRecord, UserScramCredentialRecord

SCHEDULE = (
    Fault(5.0, "kill", ("controller", 2.0)),
    Fault(9.0, "isolate", ("follower:0", 3.0)),
    Fault(13.0, "clock-jump", ("node:1", 9_000)),
    Fault(15.0, "stop", ("node:2", 1.0)),
    Fault(18.0, "clock-jump", ("node:3", -9_000)),
    Fault(20.0, "pause", ("controller", 2.0)),
    Fault(23.0, "kill-two", ("node:1", "node:3", 1.0)),
)


def test_credentials_come_and_go_while_controllers_fail() -> None:
    outcome = ClusterScenario(CREDENTIALS).run(3, SCHEDULE)
    assert outcome.held, outcome.violations
    for event in ("login-taken", "login-refused", "request-taken", "request-refused", "token-created", "password-set"):
        assert outcome.events[event] > 5, outcome.events


def test_a_login_that_never_ends_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoggedIn, "over", lambda login, now_s: False)
    assert shows("expected it to be refused by the image", ClusterScenario(CREDENTIALS), 3, ())


def test_a_login_that_ends_at_once_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoggedIn, "over", lambda login, now_s: True)
    assert shows("expected it to be taken by the image", ClusterScenario(CREDENTIALS), 3, ())


def test_the_judge_of_credentials() -> None:
    records = (
        UserScramCredentialRecord("alice", MECHANISM, b"new", b"", b"", 4_096),
        DelegationTokenRecord("t", "User:bob", "User:bob", (), 0, 100 + LIFETIME_MS, 100),
        DelegationTokenRecord("u", "User:bob", "User:bob", (), 0, 50, 100),
    )
    image = apply_records(MetadataImage(), records, Offset(0), ControllerEpoch(1))[0]
    alice, older = Credential("alice", "", b"new"), Credential("alice", "", b"old")
    carol = Credential("carol", "")
    t, u, gone = (Credential(name, "", by_token=True) for name in "tuv")
    assert is_good(image, alice, 0)
    assert not is_good(image, older, 0)
    assert is_good(image, older, 0, logs_in=False), "who has logged in goes on until the user is gone"
    assert not is_good(image, carol, 0, logs_in=False)
    assert [is_good(image, t, clock_ms) for clock_ms in (99, 100, 101)] == [True, True, False]
    assert [is_good(image, u, clock_ms, logs_in=False) for clock_ms in (50, 51)] == [True, False]
    assert not is_good(image, gone, 0)
