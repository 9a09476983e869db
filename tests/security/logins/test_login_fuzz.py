"""The short form of ``./dev fuzz login``, and what it has to notice."""

from __future__ import annotations

import asyncio
import hmac
import time
from pathlib import Path

import pytest

from tidelog.broker.access import logins
from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.http_login import Admission, HttpLogin
from tidelog.broker.access.logins import MESSAGE_BYTES_MAX
from tidelog.broker.handlers import logins as grpc_logins
from tidelog.broker.handlers.logins import TokenLogins
from tidelog.broker.node import http
from tidelog.chaos.fuzz import http2
from tidelog.chaos.fuzz.logins import GRPC, HOLD_S_MAX, KAFKA, SECRETS, LoginFuzz, LoginReport
from tidelog.metadata_quorum.raft.transport import RaftLinks
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.listener_security import OAUTHBEARER, PLAIN, SCRAM_SHA_256
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.transport.network import CallContext
from tidelog.security.sasl import PlainClient
from tidelog.security.scram import BY_SASL_NAME, ScramClient

FULL = 89_928
"""A conversation of seed 1 with a message of half a megabyte."""
SOCKET = 975
"""A conversation of seed 1 at a socket, with several calls that present a token."""
HTTP = 925
"""A conversation of seed 1 over HTTP. Its password holds a byte above 127; such a one once ended the connection with an
exception."""


def fuzzed(place: Path, inputs: int, seed: int, first: int = 0) -> LoginReport:
    return asyncio.run(LoginFuzz(place, seed).run(inputs, first))


def slow(*_: object) -> None:
    until_s = time.thread_time() + 2 * HOLD_S_MAX
    while time.thread_time() < until_s:
        continue


def test_thousands_of_damaged_logins_let_nobody_in_and_hold_nobody_up(tmp_path: Path) -> None:
    report = fuzzed(tmp_path, 12_000, 20)
    assert report.faults == []
    assert report.inputs >= 12_000
    assert report.let_in > 300, "those with the right secret that nobody disturbs"
    assert report.ended["is refused"] > 1_000
    assert min(report.ended["BadMessage"], report.ended["LoginOver"], report.ended["CloseConnection"]) > 50
    assert min(report.ended["sees metrics"], report.ended["is a controller"], report.ended["is no controller"]) > 10
    assert report.ended["gets an answer"] > 100
    assert 0 < report.longest_hold_s <= HOLD_S_MAX


def test_a_server_that_takes_any_proof_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: True)
    faults = fuzzed(tmp_path, 5_000, 20).faults
    assert any("right secret: False" in fault for fault in faults)


def test_a_message_that_holds_the_loop_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bound of a message, one of half a megabyte took 18 ms before the login."""
    assert fuzzed(tmp_path, 1, 1, FULL).faults == []
    monkeypatch.setattr(logins, "MESSAGE_BYTES_MAX", 2**20)
    (fault,) = fuzzed(tmp_path, 1, 1, FULL).faults
    assert fault.startswith(f"conversation {FULL}: held the loop for ")


def test_a_strangers_socket_that_holds_the_loop_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_ANSWER_S", 0.3)  # on a busy machine the listener takes its time
    assert fuzzed(tmp_path, 1, 1, SOCKET).faults == []

    monkeypatch.setattr(TokenLogins, "_session", slow)
    (fault,) = fuzzed(tmp_path, 1, 1, SOCKET).faults
    assert fault.startswith(f"conversation {SOCKET}: held the loop for ")


def test_a_request_over_http_that_holds_the_loop_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzzed(tmp_path, 1, 1, HTTP).faults == []
    monkeypatch.setattr(http, "stranger", slow)
    (fault,) = fuzzed(tmp_path, 1, 1, HTTP).faults
    assert fault.startswith(f"conversation {HTTP}: held the loop for ")


def test_metrics_for_strangers_and_strange_controllers_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(*_: object) -> Admission:
        return Admission.ALL

    monkeypatch.setattr(HttpLogin, "admit", admit)
    monkeypatch.setattr(RaftLinks, "refusal_of", lambda *_: "")
    faults = fuzzed(tmp_path, 2_000, 20).faults
    assert any("shows metrics without a secret" in fault for fault in faults)
    assert any("ValueError: accepted Hello(" in fault for fault in faults)


async def test_a_message_of_a_login_is_bounded(tmp_path: Path) -> None:
    fuzz = LoginFuzz(tmp_path, 1)
    for listener in (KAFKA, GRPC):
        found = fuzz.logins.find(listener)
        assert found is not None
        for mechanism in found.mechanisms:
            login = found.begin(mechanism)
            assert login is not None
            refused = await login.step(b"n,," + b"x" * MESSAGE_BYTES_MAX)
            assert isinstance(refused, logins.LoginFailed)
            assert "expected a message of at most 32768 bytes" in refused.reason
        long = found.begin(OAUTHBEARER)
        assert long is not None
        taken = await long.step(b"n,,\x01auth=Bearer " + b"x" * 16_000 + b"\x01\x01")
        assert "expected a message of at most" not in str(taken)
    fuzz.logins.close()


async def test_logins_that_a_node_keeps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_logins, "EXCHANGES_MAX", 2)
    monkeypatch.setattr(grpc_logins, "SESSIONS_MAX", 2)
    fuzz = LoginFuzz(tmp_path, 1)
    kept = TokenLogins(fuzz.logins.find, AccessControl(NodeConfig.parse({"node.id": "1"})))
    context = CallContext(GRPC, "ipv4:10.0.0.1:5000")
    scram = [ScramClient(BY_SASL_NAME[SCRAM_SHA_256], "alice", SECRETS["alice"], f"{n}") for n in range(3)]
    begun = [
        await kept.authenticate(SaslAuthenticateRequest(SCRAM_SHA_256, b"", each.first()), context) for each in scram
    ]
    errors, tokens = [], []
    for client, answer in zip(scram, begun, strict=True):
        proof = client.step(answer.auth_bytes)
        assert proof
        ended = await kept.authenticate(SaslAuthenticateRequest(SCRAM_SHA_256, answer.exchange, proof), context)
        errors.append(ended.error)
        tokens.append(ended.session_token)
    assert errors == [ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.NONE, ErrorCode.NONE], "the oldest is forgotten"
    said = PlainClient("bob", SECRETS["bob"]).first()
    ended = await kept.authenticate(SaslAuthenticateRequest(PLAIN, b"", said), context)
    find = kept.sessions(GRPC)
    assert find is not None
    assert [find(token, context.host) is not None for token in (*tokens[1:], ended.session_token)] == [
        False,
        True,
        True,
    ]
    fuzz.logins.close()
