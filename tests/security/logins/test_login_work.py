"""A failed login tells by its time no more than by its text: whoever is named, a node does the same work.

What is compared is the work itself (hashes, their rounds, the lengths of what goes in), not a time on a busy machine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tidelog.broker.access.logins import LoginFailed, Logins, NodeLogins
from tidelog.chaos.fuzz.doors import HttpDoor
from tidelog.client.admin.users import salted
from tidelog.metadata_quorum.controller.scram_changes import SECRET_BYTES, first_users
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import SystemClock
from tidelog.model.ids import ControllerEpoch, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.logs.metadata_records import DelegationTokenRecord
from tidelog.security.delegation_tokens import TokenCredentials
from tidelog.security.sasl import Challenge
from tidelog.security.scram import BY_SASL_NAME, ScramClient

SHA256, SHA512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
USERS = {"alice": [(SHA256, 4_096)], "bob": [(SHA256, 8_192)], "carol": [(SHA256, 4_096), (SHA512, 16_384)]}
STRANGERS = [f"stranger-{number}" for number in range(40)]
NAMES = (*USERS, *STRANGERS)
Work = tuple[Any, ...]


@pytest.fixture(scope="module")
def image() -> MetadataImage:
    users = [
        salted(UserScramCredentialUpsertion(name, "secret", ScramCredentialInfo(mechanism, rounds)))
        for name, kept in USERS.items()
        for mechanism, rounds in kept
    ]
    found, _ = apply_records(
        MetadataImage(), first_users(users, lambda: bytes(SECRET_BYTES)), Offset(0), ControllerEpoch(1)
    )
    return found


@pytest.fixture
def logins(image: MetadataImage) -> Iterator[Logins]:
    config = NodeConfig.parse(
        {
            "node.id": "1",
            "listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            "connection.failed.authentication.delay.ms": "0",
            "delegation.token.secret.key": "a key",
        }
    )
    made = NodeLogins(config, lambda: image, SystemClock())
    found = made.find("KAFKA")
    assert found is not None
    yield found
    made.close()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """What is hashed and compared from now on, in any thread."""
    done: list[Work] = []

    def watch(module: Any, name: str, describe: Any) -> None:
        real = getattr(module, name)

        def watched(*given: Any, **named: Any) -> Any:
            done.append((name, *describe(*given, **named)))
            return real(*given, **named)

        monkeypatch.setattr(module, name, watched)

    watch(hashlib, "pbkdf2_hmac", lambda how, password, salt, rounds: (how, len(password), len(salt), rounds))
    watch(hmac, "digest", lambda key, message, how: (how, len(key), len(message)))
    watch(hmac, "compare_digest", lambda one, other: (len(one), len(other)))
    return done


def refused(logins: Logins, mechanism: str, name: str, work: list[Work]) -> list[Work]:
    """The work of a login that fails."""

    async def run() -> None:
        login = logins.begin(mechanism)
        assert login is not None
        if mechanism == "PLAIN":
            assert isinstance(await login.step(f"\0{name}\0guess".encode()), LoginFailed)
            return
        client = ScramClient(BY_SASL_NAME[mechanism], name, "guess", "nonce")
        challenge = await login.step(client.first())
        assert isinstance(challenge, Challenge)
        at_first = list(work)
        answer = client.step(challenge.token)
        assert answer is not None
        work[:] = at_first
        assert isinstance(await login.step(answer), LoginFailed)

    del work[:]
    asyncio.run(run())
    return list(work)


def slow(work: list[Work]) -> list[Work]:
    return [each for each in work if each[0] == "pbkdf2_hmac"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_does_the_same_for_everybody(logins: Logins, work: list[Work], mechanism: str) -> None:
    known = refused(logins, mechanism, "carol", work)
    assert [each[0] for each in known] == ["digest", "digest", "compare_digest"]
    # A name as long as hers, as names are hashed.
    assert refused(logins, mechanism, "wendy", work) == known


def test_plain_does_for_strangers_what_it_does_for_users(logins: Logins, work: list[Work]) -> None:
    done = {name: slow(refused(logins, "PLAIN", name, work)) for name in NAMES}
    of_users = [done[name] for name in USERS]
    assert all(of_users.count(each) == len(each) == 1 for each in of_users), "users differ, and no one is checked twice"
    of_strangers = [done[name] for name in STRANGERS]
    assert all(each in of_users for each in of_strangers)
    assert all(each in of_strangers for each in of_users)
    for name in STRANGERS[:3]:
        assert done[name] == slow(refused(logins, "PLAIN", name, work))


def test_plain_does_no_less_for_a_stranger(logins: Logins, work: list[Work]) -> None:
    kinds = {name: [each[0] for each in refused(logins, "PLAIN", name, work)] for name in NAMES}
    assert len(set(map(tuple, kinds.values()))) == 1


def test_http_answers_strangers_as_it_answers_users(image: MetadataImage, work: list[Work]) -> None:
    settings = {"http.listener": "HTTP://127.0.0.1:0", "http.auth": "basic"}
    settings["connection.failed.authentication.delay.ms"] = "0"
    door = HttpDoor(NodeConfig.parse({"node.id": "1"} | settings), image)

    def answer(name: str) -> bytes:
        del work[:]
        shown = base64.b64encode(f"{name}:guess".encode())
        asked = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n\r\n" % shown
        return asyncio.run(door.visit([asked], lambda _: None))

    refused_with, done = {}, {}
    for name in NAMES:
        refused_with[name] = answer(name)
        done[name] = slow(work)
    door.close()
    (text,) = set(refused_with.values())
    assert text.startswith(b"HTTP/1.1 401 ")
    of_users = [done[name] for name in USERS]
    assert all(of_users.count(each) == len(each) == 1 for each in of_users)
    of_strangers = [done[name] for name in STRANGERS]
    assert all(each in of_users for each in of_strangers)
    assert all(each in of_strangers for each in of_users)


def test_a_delegation_token_costs_the_same_whether_it_is_there_or_not(work: list[Work]) -> None:
    token = DelegationTokenRecord("alice-token", "User:alice", "User:alice", (), 0, 2_000, 1_000)
    now_ms = 0
    tokens = TokenCredentials("a key", lambda: {"alice-token": token}, lambda: now_ms)
    tokens.find("alice-token", SHA512)
    known = slow(work)
    assert len(known) == 1
    tokens.find("other-token", SHA512)
    now_ms = 5_000
    tokens.find("alice-token", SHA512)
    assert slow(work) == known * 3


@pytest.mark.parametrize(
    ("voter", "protocol", "warned"),
    [("10.0.0.1", "PLAINTEXT", True), ("10.0.0.1", "SSL", False), ("127.0.0.1", "PLAINTEXT", False)],
)
def test_users_that_controllers_would_send_unencrypted_are_told_of(
    caplog: pytest.LogCaptureFixture, voter: str, protocol: str, warned: bool
) -> None:
    settings = {
        "node.id": "1",
        "controller.quorum.voters": f"1@{voter}:9093",
        "listener.security.protocol.map": f"KAFKA:SASL_PLAINTEXT,CONTROLLER:{protocol}",
        "ssl.keystore.location": "node.pem",
        "ssl.truststore.location": "ca.pem",
        "ssl.client.auth": "required",
    }
    NodeLogins(NodeConfig.parse(settings), MetadataImage, SystemClock()).close()
    assert ("listener CONTROLLER: its traffic contains users' credentials" in caplog.text) == warned
