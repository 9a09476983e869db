"""SCRAM by the vector of RFC 7677, between both of our ends, and against messages that lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.proto.logs.metadata_records import UserScramCredentialRecord
from tidelog.security.sasl import Accepted, Challenge, Costly, LoginRefused, PlainClient, PlainServer, Rejected
from tidelog.security.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    is_password_of,
    salted_password,
)

SHA256 = ScramMechanism.SCRAM_SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""RFC 7677, section 3."""


def made(mechanism: ScramMechanism, password: str = "pencil", salt: bytes = SALT) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN)


def server(
    mechanism: ScramMechanism = SHA256, credential: ScramCredential | None = None, nonce: str = SERVER_NONCE
) -> ScramServer:
    return ScramServer(mechanism, lambda name, _: credential or made(mechanism), nonce)


def begun(first: bytes = CLIENT_FIRST) -> ScramServer:
    found = server()
    assert isinstance(found.step(first), Challenge)
    return found


def test_the_vector_of_rfc_7677() -> None:
    ours = server()
    assert ours.step(CLIENT_FIRST) == Challenge(SERVER_FIRST)
    assert ours.step(CLIENT_FINAL) == Accepted("user", SERVER_FINAL)
    client = ScramClient(SHA256, "user", "pencil", CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST
    assert client.step(SERVER_FIRST) == CLIENT_FINAL
    assert client.step(SERVER_FINAL) is None


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


@given(names, names, st.sampled_from(ScramMechanism))
def test_both_ends_agree_on_any_name_and_password(name: str, password: str, mechanism: ScramMechanism) -> None:
    asked: list[str] = []
    credential = made(mechanism, password)

    def find(user: str, _: ScramMechanism) -> ScramCredential:
        asked.append(user)
        return credential

    ours, client = ScramServer(mechanism, find, "server"), ScramClient(mechanism, name, password, "client")
    first = ours.step(client.first())
    assert isinstance(first, Challenge)
    done = ours.step(client.step(first.token) or b"")
    assert isinstance(done, Accepted)
    assert client.step(done.token) is None
    assert (asked, done.name) == ([name], name)
    assert is_password_of(mechanism, credential, password)
    assert not is_password_of(mechanism, credential, password + "x")


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,,n=user,r=abc,rest",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_first_message_that_is_none_is_rejected(first: bytes) -> None:
    ours = server()
    assert isinstance(ours.step(first), Rejected)
    assert isinstance(ours.step(CLIENT_FINAL), Rejected), "it went on after its end"


@pytest.mark.parametrize("first", [b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,x=more"])
def test_what_else_a_first_message_may_be(first: bytes) -> None:
    begun(first)


def forged(change: Callable[[bytes], bytes]) -> bytes:
    return change(CLIENT_FINAL)


@pytest.mark.parametrize(
    "final",
    [
        forged(lambda sent: sent.replace(b"c=biws", b"c=eSws")),  # another header than was sent
        forged(lambda sent: sent.replace(b"r=rOpr", b"r=xrOpr")),  # ends with the server's nonce (CVE-2024-56128)
        forged(lambda sent: sent.replace(b"p=dHzb", b"p=eHzb")),
        forged(lambda sent: sent[: sent.index(b",p=")]),
        forged(lambda sent: sent[:-8]),
        forged(lambda sent: sent.replace(b"p=", b"p=!")),
        b"",
    ],
)
def test_a_forged_proof_is_rejected(final: bytes) -> None:
    ours = begun()
    assert isinstance(ours.step(final), Rejected)
    assert isinstance(ours.step(CLIENT_FINAL), Rejected), "a second try was allowed"


@pytest.mark.parametrize(
    ("header", "nonce"),
    [
        ("biws", "x" + CLIENT_NONCE + SERVER_NONCE),
        ("biws", SERVER_NONCE),
        ("eSws", CLIENT_NONCE + SERVER_NONCE),
    ],
    ids=["ends with the server's nonce", "is the server's nonce", "another header"],
)
def test_a_message_that_does_not_fit_is_rejected_though_its_proof_is_right(header: str, nonce: str) -> None:
    """CVE-2024-56128: whoever knows the password signs what it likes."""
    without_proof = f"c={header},r={nonce}"
    message = f"n=user,r={CLIENT_NONCE},{SERVER_FIRST.decode()},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, ITERATIONS_MIN)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    assert isinstance(begun().step(without_proof.encode() + b",p=" + proof), Rejected)


@given(st.lists(st.one_of(st.sampled_from([CLIENT_FIRST, CLIENT_FINAL]), st.binary(max_size=60)), max_size=4))
def test_one_way_alone_leads_in(messages: list[bytes]) -> None:
    ours = server()
    outcomes = []
    for message in messages:
        outcomes.append(ours.step(message))
        if not isinstance(outcomes[-1], Challenge):
            break
    if any(isinstance(outcome, Accepted) for outcome in outcomes):
        assert messages[:2] == [CLIENT_FIRST, CLIENT_FINAL]


@pytest.mark.parametrize(
    "answer",
    [
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999"),
        SERVER_FIRST.replace(b"r=rOpr", b"r=xOpr"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"e=other-error",
    ],
)
def test_a_client_does_not_answer_a_server_that_lies(answer: bytes) -> None:
    with pytest.raises(LoginRefused):
        ScramClient(SHA256, "user", "pencil", CLIENT_NONCE).step(answer)


@pytest.mark.parametrize("final", [b"v=AAAA", b"e=invalid-proof", b"", SERVER_FINAL.replace(b"6r", b"7r")])
def test_a_client_knows_an_impostor(final: bytes) -> None:
    client = ScramClient(SHA256, "user", "pencil", CLIENT_NONCE)
    client.step(SERVER_FIRST)
    with pytest.raises(LoginRefused, match="impostor"):
        client.step(final)


def test_plain() -> None:
    ours = PlainServer(lambda name, password: (name, password) == ("user", "pencil"))
    token = PlainClient("user", "pencil").first()
    for said, outcome in ((token, Accepted("user")), (b"user" + token, Accepted("user"))):
        step = ours.step(said)
        assert isinstance(step, Costly)
        assert step.work() == outcome
    wrong = ours.step(PlainClient("user", "pen").first())
    assert isinstance(wrong, Costly)
    assert isinstance(wrong.work(), Rejected)


@pytest.mark.parametrize(
    "token", [b"", b"\0user", b"\0\0x", b"\0user\0", b"admin\0user\0pencil", b"\0u\0p\0", b"\xff\0u\0p"]
)
def test_plain_that_is_none_is_rejected_at_once(token: bytes) -> None:
    assert isinstance(PlainServer(lambda *_: True).step(token), Rejected)


def test_secrets_are_not_shown() -> None:
    credential = made(SHA256)
    record = UserScramCredentialRecord("user", 1, credential.salt, credential.stored_key, credential.server_key, 4096)
    shown = repr((credential, record, Challenge(b"secret"), Accepted("user", b"secret")))
    for secret in (credential.salt, credential.stored_key, credential.server_key, b"secret"):
        assert repr(secret) not in shown
