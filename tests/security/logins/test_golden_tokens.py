"""Logins by delegation tokens between Kafka's own client and server: either of our ends says the same, byte by byte."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tidelog.security.delegation_tokens import password_of, token_hmac
from tidelog.security.sasl import Accepted, Challenge, Costly
from tidelog.security.scram import (
    BY_SASL_NAME,
    DelegatedCredential,
    ScramClient,
    ScramMechanism,
    ScramServer,
    StoredCredential,
    credential_of,
    salted_password,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "delegation-tokens.txt"
CASES = [line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def part(message: str, name: str) -> str:
    """One attribute of a SCRAM message."""
    return next(each[2:] for each in message.split(",") if each.startswith(f"{name}="))


def test_there_are_cases_of_both_mechanisms() -> None:
    assert {case[2] for case in CASES} == set(BY_SASL_NAME)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_hmacs_are_kafkas(case: list[str]) -> None:
    key, token_id, _, hmac, *_ = case
    assert password_of(token_hmac(key, token_id)) == hmac


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_our_client_says_what_kafkas_says(case: list[str]) -> None:
    _, token_id, mechanism, hmac, first, challenge, last, verifier = case
    client = ScramClient(BY_SASL_NAME[mechanism], token_id, hmac, part(first, "r"), by_token=True)
    assert client.first() == first.encode()
    assert client.step(challenge.encode()) == last.encode()
    assert client.step(verifier.encode()) is None
    assert client.done


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_our_server_says_what_kafkas_says(case: list[str]) -> None:
    _, token_id, name, hmac, first, challenge, last, verifier = case
    mechanism, salt, count = BY_SASL_NAME[name], base64.b64decode(part(challenge, "s")), int(part(challenge, "i"))

    def no_user(_: str, __: ScramMechanism) -> StoredCredential:
        raise AssertionError("expected a look-up of a token, found one of a user")

    def find(asked: str, _: ScramMechanism) -> DelegatedCredential:
        assert asked == token_id
        made = credential_of(mechanism, salted_password(mechanism, hmac, salt, count), salt, count)
        return DelegatedCredential(made, "User:alice", 2)

    server = ScramServer(mechanism, no_user, part(challenge, "r").removeprefix(part(first, "r")), find)
    step = server.step(first.encode())
    assert isinstance(step, Costly)
    assert step.work() == Challenge(challenge.encode())
    assert server.step(last.encode()) == Accepted("alice", verifier.encode(), 2, token_id)
