"""Users' credentials in the metadata log: what is made, what is refused, and that nothing shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.controller.conftest import Bench
from tidelog.metadata_quorum.controller import scram_changes
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest, ScramDeletion, ScramUpsertion
from tidelog.security.scram import ScramMechanism as Mechanism
from tidelog.security.scram import is_password_of, salted_password

SALT = b"salt" * 4
SHA256, SHA512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def upsertion(user: str, password: str = "secret", mechanism: Mechanism = SHA256) -> ScramUpsertion:
    return ScramUpsertion(user, mechanism, 4096, SALT, salted_password(mechanism, password, SALT, 4096))


def alter(bench: Bench, *changes: ScramDeletion | ScramUpsertion) -> dict[str, ErrorCode]:
    deletions = tuple(each for each in changes if isinstance(each, ScramDeletion))
    upsertions = tuple(each for each in changes if isinstance(each, ScramUpsertion))
    answer = bench.ask(AlterUserScramCredentialsRequest(deletions, upsertions))
    assert answer.error is ErrorCode.NONE
    return {result.user: result.error for result in answer.results}


def test_users_come_change_and_go_and_a_snapshot_keeps_them(bench: Bench) -> None:
    assert alter(bench, upsertion("a"), upsertion("b", mechanism=SHA512)) == dict.fromkeys("ab", ErrorCode.NONE)
    users = bench.controller.committed.users
    assert is_password_of(SHA256, users["a", SHA256], "secret")
    assert is_password_of(SHA512, users["b", SHA512], "secret")
    secret = bench.controller.committed.decoy_secret
    assert len(secret) == scram_changes.SECRET_BYTES
    assert alter(bench, upsertion("a", "other"), ScramDeletion("b", SHA512)) == dict.fromkeys("ab", ErrorCode.NONE)
    image = bench.controller.committed
    assert is_password_of(SHA256, image.users["a", SHA256], "other")
    assert set(image.users) == {("a", 1)}
    assert image.decoy_secret == secret, "the salts of users that are not there changed"
    assert decode_snapshot(encode_snapshot(image)) == image
    shown = repr(image)
    assert all(repr(each) not in shown for each in (secret, SALT, image.users["a", SHA256].stored_key))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (ScramDeletion("nobody", 1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramDeletion("a", 2), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramDeletion("a", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramDeletion("", 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (replace(upsertion("x"), mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (replace(upsertion("x"), iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (replace(upsertion("x"), iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (replace(upsertion("x"), salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (replace(upsertion("x"), salted_password=b"x" * 64), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("*"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("n" * 1025), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_alone(
    bench: Bench, change: ScramDeletion | ScramUpsertion, error: ErrorCode
) -> None:
    alter(bench, upsertion("a"))
    assert alter(bench, change, upsertion("b")) == {change.user: error, "b": ErrorCode.NONE}
    assert {name for name, _ in bench.controller.committed.users} == {"a", "b"}


@pytest.mark.parametrize(
    "changes",
    [
        (upsertion("a"), upsertion("a", mechanism=SHA512)),
        (ScramDeletion("a", 1), ScramDeletion("a", 1)),
        (ScramDeletion("a", 1), upsertion("a")),
    ],
)
def test_a_user_is_altered_once_in_a_request(bench: Bench, changes: tuple[ScramDeletion | ScramUpsertion, ...]) -> None:
    alter(bench, upsertion("a", "before"))
    assert alter(bench, *changes) == {"a": ErrorCode.DUPLICATE_RESOURCE}
    assert is_password_of(SHA256, bench.controller.committed.users["a", SHA256], "before")


def test_a_request_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_changes, "CHANGES_MAX", 1)
    answer = bench.ask(AlterUserScramCredentialsRequest((), (upsertion("a"), upsertion("b"))))
    assert (answer.error, answer.results) == (ErrorCode.INVALID_REQUEST, ())
    assert not bench.controller.committed.users


def test_the_credentials_of_a_cluster_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_changes, "CREDENTIALS_MAX", 2)
    none, full = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
    assert alter(bench, upsertion("a"), upsertion("b"), upsertion("c")) == {"a": none, "b": none, "c": full}
    assert alter(bench, upsertion("a", mechanism=SHA512)) == {"a": full}
    answer = bench.ask(AlterUserScramCredentialsRequest((), (upsertion("c"),)))
    assert "at most 2 users' credentials in the cluster" in answer.results[0].error_message
    assert alter(bench, upsertion("b", "other"), ScramDeletion("a", SHA256)) == {"a": none, "b": none}, (
        "what is there may change and go"
    )
    assert alter(bench, upsertion("c")) == {"c": none}
    assert {name for name, _ in bench.controller.committed.users} == {"b", "c"}
