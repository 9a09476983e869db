"""Which tokens are good, and what is done to know it: by table, with an issuer that runs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.issuer import AUDIENCE, CLIENTS, NAME, Issuer, running
from tidelog.security.issuer import IssuerError, TokenEndpoint, check_url, fetch
from tidelog.security.oauthbearer import REFUSED, TOKEN_BYTES_MAX, OAuthClient, OAuthServer
from tidelog.security.sasl import Accepted, Challenge, Costly, LoginRefused, Rejected
from tidelog.security.token_judge import RETRY_FAILED_S, RETRY_S, Expected, IssuerKeys, TokenJudge

EXPECTED = Expected(NAME, ("other", AUDIENCE), 30, "sub")
REFRESH_S = 3_600.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running(Issuer()) as found:
        yield found


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def judge_of(issuer: Issuer, expected: Expected = EXPECTED, clock: Clock | None = None) -> TokenJudge:
    return TokenJudge(IssuerKeys(f"{issuer.url}/jwks", REFRESH_S, clock or Clock()), expected)


def judged(judge: TokenJudge, token: str) -> Accepted | Rejected:
    found = judge(token)
    if isinstance(found, Costly):
        done = found.work()
        assert not isinstance(done, Challenge)
        return done
    return found


def reason(judge: TokenJudge, token: str) -> str:
    found = judged(judge, token)
    assert isinstance(found, Rejected), found
    return found.reason


# --- Good ones ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("RSA", "RS256"),
        ("RSA", "RS512"),
        ("RSA", "PS256"),
        ("P-256", "ES256"),
        ("P-384", "ES384"),
        ("Ed25519", "EdDSA"),
    ],
)
def test_a_good_token_says_who_and_until_when(kind: str, algorithm: str) -> None:
    with running(Issuer(kind)) as issuer:
        exp = int(time.time()) + 77
        found = judged(judge_of(issuer), issuer.token("älice", algorithm=algorithm, exp=exp))
        assert found == Accepted("älice", until_ms=exp * 1000)


def test_another_claim_may_have_the_name(issuer: Issuer) -> None:
    judge = judge_of(issuer, Expected(NAME, (AUDIENCE,), 30, "client_id"))
    other: tuple[dict[str, Any], ...] = ({"sub": None}, {})
    for claims in other:
        found = judged(judge, issuer.token(client_id="app", **claims))
        assert isinstance(found, Accepted)
        assert found.name == "app"
    assert "the claim client_id" in reason(judge, issuer.token())


def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    now = int(time.time())
    for claims in ({"exp": now - 20}, {"nbf": now + 20}, {"iat": now + 20}, {"aud": ["x", AUDIENCE]}):
        assert isinstance(judged(judge_of(issuer), issuer.token(**claims)), Accepted), claims


def test_a_token_without_the_name_of_a_key_means_the_only_one() -> None:
    with running(Issuer()) as issuer:
        judge = judge_of(issuer)
        assert isinstance(judged(judge, issuer.token(kid=None)), Accepted)
        issuer.add_key("second")
        assert "without a key id" in reason(judge_of(issuer), issuer.token(kid=None))


# --- Bad ones -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": int(time.time()) - 60}, "has expired"),
        ({"exp": None}, "the claim exp"),
        ({"iat": None}, "the claim iat"),
        ({"sub": None}, "the claim sub"),
        ({"exp": "soon"}, "expected a JSON Web Token"),
        ({"exp": [1]}, "expected a JSON Web Token"),
        ({"sub": "alice\nbob"}, "expected the name of a user as claim sub"),
        ({"exp": 1e308 * 10}, "expected a JSON Web Token"),
        ({"nbf": 32503680000}, "do the clocks of node and issuer agree"),
        ({"iat": 32503680000}, "do the clocks of node and issuer agree"),
        ({"iss": "https://another.example"}, f"expected a token from the issuer {NAME}"),
        ({"iss": None}, "the claim iss"),
        ({"aud": "another"}, f"expected a token for other or {AUDIENCE}"),
        ({"aud": None}, "the claim aud"),
        ({"sub": "*"}, "expected the name of a user as claim sub"),
        ({"sub": ""}, "expected the name of a user as claim sub"),
    ],
)
def test_claims_that_do_not_fit_are_refused(issuer: Issuer, claims: dict[str, Any], said: str) -> None:
    token = issuer.token(**claims)
    found = reason(judge_of(issuer), token)
    assert said in found
    assert token not in found
    assert "another.example" not in found, "what a stranger says has no place in a node's log"


def unsigned(issuer: Issuer) -> str:
    return jwt.encode({"sub": "alice", "iss": NAME, "aud": AUDIENCE}, "", "none", headers={"kid": "first"})


def signed_with_the_public_key(issuer: Issuer) -> str:
    """The public key taken for the secret of an HMAC (CVE-2015-9235)."""
    secret = issuer.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = json.dumps({"alg": "HS256", "kid": "first"}).encode()
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, _body(issuer)))
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text, hashlib.sha256)).rstrip(b"=")
    return (text + b"." + signature).decode()


def _body(issuer: Issuer) -> bytes:
    return base64.urlsafe_b64decode(issuer.token().split(".")[1] + "===")


def of_another_issuer(issuer: Issuer) -> str:
    return Issuer().token()


def with_another_claim(issuer: Issuer) -> str:
    head, _, signature = issuer.token().split(".")
    body = base64.urlsafe_b64encode(_body(issuer).replace(b"alice", b"admin")).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def of_an_unknown_key(issuer: Issuer) -> str:
    other = Issuer()
    other.add_key("unknown")
    return other.token(kid="unknown")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (unsigned, r"expected a token signed with RS256.*found 'none'"),
        (signed_with_the_public_key, r"expected a token signed with RS256.*found 'HS256'"),
        (of_another_issuer, "does not match the key that it names"),
        (with_another_claim, "does not match the key that it names"),
        (of_an_unknown_key, "found one of key 'unknown'"),
        (lambda _: "a.b.c", "expected a JSON Web Token"),
        (lambda _: "abc", "expected a JSON Web Token"),
    ],
)
def test_a_token_that_the_issuer_did_not_sign_is_refused(
    issuer: Issuer, make: Callable[[Issuer], str], said: str
) -> None:
    assert re.search(said, reason(judge_of(issuer), make(issuer)))


def test_keys_that_are_not_for_this_are_left_out() -> None:
    with running(Issuer()) as issuer:
        secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "first", "alg": "HS256"}
        whole = issuer.jwks()
        private = jwt.algorithms.RSAAlgorithm.to_jwk(issuer.keys["first"], as_dict=True)
        for key in (
            secret,
            private | {"kid": "first", "use": "sig"},
            *(
                {**whole["keys"][0], **more}
                for more in ({"use": "enc"}, {"alg": "RSA-OAEP"}, {"n": "!"}, {"n": 7}, {"kty": "EC", "crv": []})
            ),
        ):
            issuer.jwks = lambda key=key: {"keys": [key]}  # type: ignore[misc, method-assign]
            keys = IssuerKeys(f"{issuer.url}/jwks", REFRESH_S)
            with pytest.raises(IssuerError, match="expected a key for signatures"):
                keys.fetch()


# --- When the issuer is asked -------------------------------------------------------------------------


def test_a_new_key_is_found_and_strangers_do_not_make_a_node_ask() -> None:
    clock = Clock()
    with running(Issuer()) as issuer:
        judge = judge_of(issuer, clock=clock)
        assert isinstance(judged(judge, issuer.token()), Accepted)
        issuer.add_key("second")
        for _ in range(50):
            assert "'second'" in reason(judge, issuer.token(kid="second"))
        assert issuer.asked["/jwks"] == 1
        clock.now_s += RETRY_S
        assert isinstance(judge(issuer.token()), Accepted), "a known key needs no issuer"
        assert isinstance(judged(judge, issuer.token(kid="second")), Accepted)
        assert issuer.asked["/jwks"] == 2
        del issuer.keys["first"], issuer.keys["second"]
        issuer.add_key("third")
        clock.now_s += REFRESH_S
        old = issuer.token(kid="third")
        assert isinstance(judged(judge, old), Accepted)
        assert issuer.asked["/jwks"] == 3


def test_a_key_that_was_withdrawn_is_good_no_longer_than_it_takes_to_refresh() -> None:
    clock = Clock()
    with running(Issuer()) as issuer:
        judge, token = judge_of(issuer, clock=clock), issuer.token()
        assert isinstance(judged(judge, token), Accepted)
        del issuer.keys["first"]
        issuer.add_key("second")
        clock.now_s += REFRESH_S - 1
        assert isinstance(judged(judge, token), Accepted)
        clock.now_s += 1
        assert "'first'" in reason(judge, token)


@pytest.mark.parametrize("broken", ["500", "junk", "redirect"])
def test_keys_stay_while_the_issuer_is_down(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with running(Issuer()) as issuer:
        judge = judge_of(issuer, clock=clock)
        issuer.broken = broken
        assert "'first'" in reason(judge, issuer.token())
        assert "cannot read the token issuer's keys" in caplog.text
        issuer.broken = None
        clock.now_s += RETRY_FAILED_S
        assert isinstance(judged(judge, issuer.token()), Accepted)
        issuer.broken = broken
        clock.now_s += REFRESH_S
        assert isinstance(judged(judge, issuer.token()), Accepted)
        assert isinstance(judge(issuer.token()), Accepted), "asked a moment ago"


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://issuer.example/jwks", True),
        ("http://127.0.0.1:1/jwks", True),
        ("http://localhost/jwks", True),
        ("http://[::1]:80/jwks", True),
        ("file:///keys.json", True),
        ("http://issuer.example/jwks", False),
        ("http://127.0.0.1.example/jwks", False),
        ("file://host/keys.json", False),
        ("ftp://issuer.example/jwks", False),
        ("issuer.example", False),
        ("", False),
    ],
)
def test_which_addresses_are_asked(url: str, good: bool) -> None:
    if good:
        assert check_url(url) == url
    else:
        with pytest.raises(ValueError, match="expected https://"):
            check_url(url)


# --- Messages -----------------------------------------------------------------------------------------


def test_both_ends_agree() -> None:
    server = OAuthServer(lambda token: Accepted("alice", until_ms=1) if token == "good" else Rejected("not good"))
    assert server.step(OAuthClient(lambda: "good").first()) == Accepted("alice", until_ms=1)
    client = OAuthClient(lambda: "bad")
    server = OAuthServer(lambda _: Rejected("not good"))
    challenge = server.step(client.first())
    assert challenge == Challenge(REFUSED)
    assert server.step(client.step(REFUSED) or b"") == Rejected("not good")


@pytest.mark.parametrize(
    ("message", "good"),
    [
        (b"n,,\x01auth=Bearer t\x01\x01", True),
        (b"n,a=alice,\x01auth=bearer t\x01\x01", True),
        (b"n,,\x01host=h\x01auth=Bearer t\x01port=1\x01\x01", True),
        (b"n,a=admin,\x01auth=Bearer t\x01\x01", False),
        (b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01", False),
        (b"n,,\x01auth=Bearer \xff\x01auth=Bearer t\x01\x01", False),
        (b"y,,\x01auth=Bearer t\x01\x01", False),
        (b"n,,\x01auth=Basic t\x01\x01", False),
        (b"n,,\x01auth=Bearer t\x01", False),
        (b"n,,\x01auth=Bearer \xff\x01\x01", False),
        (b"n,,\x01auth=Bearer " + b"t" * (TOKEN_BYTES_MAX + 1) + b"\x01\x01", False),
        (b"", False),
    ],
)
def test_which_messages_are_taken(message: bytes, good: bool) -> None:
    assert isinstance(OAuthServer(lambda _: Accepted("alice")).step(message), Accepted) is good


@given(st.lists(st.binary(max_size=80) | st.sampled_from([b"n,,\x01auth=Bearer a.b.c\x01\x01", b"\x01"]), max_size=3))
@settings(max_examples=200, deadline=None)
def test_no_bytes_get_in(messages: list[bytes]) -> None:
    server = OAuthServer(TokenJudge(IssuerKeys("file:///nowhere", 1), EXPECTED))
    for message in messages:
        found = server.step(message)
        if isinstance(found, Costly):
            found = found.work()
        assert not isinstance(found, Accepted)
        if isinstance(found, Rejected):
            break


def test_a_token_of_deep_json_is_refused(issuer: Issuer) -> None:
    for part in (
        b"[" * 20_000,
        b'{"alg":' * 5_000,
        b'{"alg":"RS256","kid":7}',
        b'{"alg":"RS256","crit":["x"],"kid":"first"}',
    ):
        head = base64.urlsafe_b64encode(part).rstrip(b"=").decode()
        assert isinstance(judged(judge_of(issuer), f"{head}.{issuer.token().partition('.')[2]}"), Rejected)


# --- The client's endpoint ----------------------------------------------------------------------------


def test_a_client_keeps_its_token_as_long_as_it_is_good() -> None:
    clock = Clock()
    with running(Issuer()) as issuer:
        issuer.lifetime_s = 100
        source = TokenEndpoint(f"{issuer.url}/token", "alice", CLIENTS["alice"], "orders", clock)
        first = source()
        assert jwt.decode(first, options={"verify_signature": False})["scope"] == "orders"
        clock.now_s += 79
        assert source() == first
        clock.now_s += 1
        source()
        assert issuer.asked["/token"] == 2


def test_what_a_client_hears_of_its_issuer(tmp_path: Path) -> None:
    with running(Issuer()) as issuer:
        with pytest.raises(LoginRefused, match=r"no token: .*/token: found HTTP 401 \(invalid_client\)") as refused:
            TokenEndpoint(f"{issuer.url}/token", "alice", "guess-of-mine", None)()
        assert "guess-of-mine" not in str(refused.value)
        for broken, said in (("500", "found HTTP 500"), ("junk", "expected JSON"), ("redirect", "found HTTP 302")):
            issuer.broken = broken
            with pytest.raises(LoginRefused, match=said):
                TokenEndpoint(f"{issuer.url}/token", "alice", CLIENTS["alice"], None)()
        url = issuer.url
    with pytest.raises(LoginRefused, match="Connection refused"):
        TokenEndpoint(f"{url}/token", "alice", CLIENTS["alice"], None)()
    path = tmp_path / "token"
    path.write_text("one\n")
    source = TokenEndpoint(path.as_uri(), None, None, None)
    assert source() == "one"
    path.write_text("two\n")
    assert source() == "two"
    path.unlink()
    with pytest.raises(LoginRefused, match="No such file"):
        source()
    with pytest.raises(IssuerError, match="No such file"):
        fetch(path.as_uri())
    providers: tuple[Any, ...] = (lambda: "two words", lambda: 7)
    for provider in providers:
        with pytest.raises(LoginRefused, match="expected a token of letters"):
            OAuthClient(provider).first()
