"""Delegation tokens in the metadata log: what is made, who may change it, when it goes, and that nothing shows it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest

from tests.controller.conftest import Bench
from tidelog.metadata_quorum.controller import token_changes
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribedDelegationToken,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.logs.metadata_records import DelegationTokenRecord
from tidelog.security.delegation_tokens import TokenCredentials, password_of, token_hmac
from tidelog.security.sasl import Accepted, Cause, Challenge, Costly, Rejected
from tidelog.security.scram import ScramClient, ScramMechanism, ScramServer

KEY = "the key of all nodes"
ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
DAY_MS, WEEK_MS = 86_400_000, 7 * 86_400_000


@pytest.fixture
def bench() -> Bench:
    return Bench(delegation_token_secret_key=KEY)


def create(bench: Bench, requester: str = ALICE, **more: object) -> DescribedDelegationToken:
    answer = bench.ask(replace(CreateDelegationTokenRequest(requester=requester), **more))  # type: ignore[arg-type]
    assert (answer.error, answer.error_message) == (ErrorCode.NONE, "")
    assert answer.token is not None
    return answer.token


def renew(bench: Bench, token: DescribedDelegationToken, who: str = ALICE, period_ms: int = -1) -> ErrorCode:
    return bench.ask(RenewDelegationTokenRequest(token.hmac, period_ms, who)).error


def expire(bench: Bench, token: DescribedDelegationToken, who: str = ALICE, period_ms: int = -1) -> ErrorCode:
    return bench.ask(ExpireDelegationTokenRequest(token.hmac, period_ms, who)).error


def kept(bench: Bench, token: DescribedDelegationToken) -> DelegationTokenRecord | None:
    return bench.controller.committed.delegation_tokens.get(token.token_id)


def test_a_token_is_as_kafka_makes_it(bench: Bench) -> None:
    token = create(bench, ALICE, owner=BOB, renewers=(CAROL, CAROL))
    now_ms = bench.wall_ms
    assert token.hmac == hmac.new(KEY.encode(), token.token_id.encode(), hashlib.sha512).digest()
    assert len(token.token_id) == 22
    record = DelegationTokenRecord(token.token_id, BOB, ALICE, (CAROL,), now_ms, now_ms + WEEK_MS, now_ms + DAY_MS)
    assert kept(bench, token) == record
    shown = repr((bench.controller.committed, token, RenewDelegationTokenRequest(token.hmac)))
    assert all(text not in shown for text in (repr(token.hmac)[:20], password_of(token.hmac), KEY))


def test_a_snapshot_keeps_tokens(bench: Bench) -> None:
    made = [create(bench, renewers=(BOB,)) for _ in range(3)]
    assert expire(bench, made[1]) is ErrorCode.NONE
    bench.wall_ms += 5
    assert renew(bench, made[2]) is ErrorCode.NONE
    image = bench.controller.committed
    assert set(image.delegation_tokens) == {made[0].token_id, made[2].token_id}
    assert decode_snapshot(encode_snapshot(image)) == image


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "until_ms"),
    [
        (-1, WEEK_MS, DAY_MS),
        (0, WEEK_MS, DAY_MS),
        (1_000, 1_000, 1_000),
        (2 * DAY_MS, 2 * DAY_MS, DAY_MS),
        (LONG_MAX, WEEK_MS, DAY_MS),
    ],
)
def test_how_long_a_token_lives(bench: Bench, asked_ms: int, max_ms: int, until_ms: int) -> None:
    token = create(bench, max_lifetime_ms=asked_ms)
    assert token.max_timestamp_ms - token.issue_timestamp_ms == max_ms
    assert token.expiration_timestamp_ms - token.issue_timestamp_ms == until_ms


def test_times_stay_within_64_bits() -> None:
    bench = Bench(
        delegation_token_secret_key=KEY,
        delegation_token_max_lifetime_ms=str(LONG_MAX),
        delegation_token_expiry_time_ms=str(LONG_MAX),
    )
    token = create(bench, max_lifetime_ms=LONG_MAX)
    assert (token.max_timestamp_ms, token.expiration_timestamp_ms) == (LONG_MAX, LONG_MAX)
    bench.wall_ms += 1
    assert renew(bench, token) is ErrorCode.NONE
    assert expire(bench, token, period_ms=LONG_MAX) is ErrorCode.NONE


def test_a_renewal_counts_from_now_and_ends_with_the_token(bench: Bench) -> None:
    token = create(bench)
    for day in range(1, 7):
        bench.wall_ms += DAY_MS
        assert renew(bench, token) is ErrorCode.NONE
        found = kept(bench, token)
        assert found is not None
        assert found.expiration_timestamp_ms == min(bench.wall_ms + DAY_MS, token.max_timestamp_ms), day
    assert renew(bench, token, period_ms=10) is ErrorCode.NONE
    found = kept(bench, token)
    assert found is not None
    assert found.expiration_timestamp_ms == bench.wall_ms + 10
    bench.wall_ms += 11
    assert renew(bench, token) is ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize(("who", "error"), [(ALICE, ErrorCode.NONE), (BOB, ErrorCode.NONE)])
def test_owner_and_renewers_change_a_token(bench: Bench, who: str, error: ErrorCode) -> None:
    token = create(bench, renewers=(BOB,))
    assert renew(bench, token, who) is error
    assert expire(bench, token, who, 0) is error
    assert expire(bench, token, who) is error
    assert kept(bench, token) is None


def test_nobody_else_changes_a_token_not_even_who_asked_for_it(bench: Bench) -> None:
    token = create(bench, ALICE, owner=BOB)
    for who in (ALICE, CAROL):
        assert renew(bench, token, who) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert expire(bench, token, who) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert expire(bench, token, who, 5) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert kept(bench, token) is not None


def test_a_token_is_named_by_its_hmac_alone(bench: Bench) -> None:
    token = create(bench)
    for wrong in (b"", token.hmac[:-1], bytes([token.hmac[0] ^ 1]) + token.hmac[1:], token.token_id.encode()):
        altered = replace(token, hmac=wrong)
        assert renew(bench, altered) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert expire(bench, altered) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_an_expired_token_can_only_be_removed(bench: Bench) -> None:
    token = create(bench)
    bench.wall_ms = token.expiration_timestamp_ms + 1
    assert renew(bench, token) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(bench, token, period_ms=5) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(bench, token) is ErrorCode.NONE
    assert expire(bench, token) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_are_swept_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_changes, "REMOVALS_MAX", 2)
    short = [create(bench, max_lifetime_ms=10) for _ in range(3)]
    long = create(bench)
    bench.wall_ms += 10
    assert not bench.controller.sweep_tokens(), "removed at its last millisecond"
    bench.wall_ms += 1
    for left in (2, 1):
        bench.take(tuple(bench.controller.sweep_tokens()))
        assert len(bench.controller.committed.delegation_tokens) == left
    assert kept(bench, long) is not None
    assert all(kept(bench, each) is None for each in short)
    assert not bench.controller.sweep_tokens()


def test_without_a_key_there_are_no_tokens() -> None:
    for bench in (Bench(), Bench(delegation_token_secret_key="")):
        disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert bench.ask(CreateDelegationTokenRequest(requester=ALICE)).error is disabled
        assert bench.ask(RenewDelegationTokenRequest(b"x", requester=ALICE)).error is disabled
        assert bench.ask(ExpireDelegationTokenRequest(b"x", requester=ALICE)).error is disabled


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (CreateDelegationTokenRequest("Group:staff"), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (CreateDelegationTokenRequest(renewers=(BOB, "Group:staff")), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (CreateDelegationTokenRequest("User:*"), ErrorCode.INVALID_REQUEST),
        (CreateDelegationTokenRequest("User:"), ErrorCode.INVALID_REQUEST),
        (CreateDelegationTokenRequest(renewers=(":bob",)), ErrorCode.INVALID_REQUEST),
        (CreateDelegationTokenRequest("User:" + "n" * 1024), ErrorCode.INVALID_REQUEST),
        (CreateDelegationTokenRequest(renewers=(BOB,) * 101), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    bench: Bench, change: CreateDelegationTokenRequest, error: ErrorCode
) -> None:
    answer = bench.ask(replace(change, requester=ALICE))
    assert (answer.error, answer.token) == (error, None)
    assert not bench.controller.committed.delegation_tokens


def test_tokens_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_changes, "TOKENS_MAX", 1)
    token = create(bench)
    assert bench.ask(CreateDelegationTokenRequest(requester=BOB)).error is ErrorCode.POLICY_VIOLATION
    assert expire(bench, token) is ErrorCode.NONE
    create(bench, BOB)


def test_one_owner_cannot_take_all_the_room() -> None:
    bench = Bench(delegation_token_secret_key=KEY, delegation_token_max_per_owner="2")
    first = create(bench)
    create(bench, BOB, owner=ALICE)
    refused = bench.ask(CreateDelegationTokenRequest(requester=ALICE))
    assert (refused.error, refused.token) == (ErrorCode.POLICY_VIOLATION, None)
    assert "expected fewer than 2 delegation tokens of User:alice (delegation.token.max.per.owner)" in (
        refused.error_message
    )
    assert bench.ask(CreateDelegationTokenRequest(ALICE, requester=BOB)).error is ErrorCode.POLICY_VIOLATION
    create(bench, BOB)
    create(bench, BOB)
    bench.wall_ms += WEEK_MS + 1
    assert bench.ask(CreateDelegationTokenRequest(requester=ALICE)).error is ErrorCode.POLICY_VIOLATION, (
        "an expired token takes room until it is removed"
    )
    assert expire(bench, first) is ErrorCode.NONE
    create(bench)


# --- Logging in by them -------------------------------------------------------------------------------


def login(bench: Bench, mechanism: ScramMechanism, token_id: str, password: str, key: str = KEY) -> Accepted | Rejected:
    """One login at a node that has the bench's image."""
    known = TokenCredentials(key, lambda: bench.controller.committed.delegation_tokens, lambda: bench.wall_ms)

    def no_user(name: str, _: ScramMechanism) -> ScramMechanism:
        raise AssertionError(f"expected a look-up of a token, found one of the user {name}")

    server = ScramServer(mechanism, no_user, "server", known.find)  # type: ignore[arg-type]
    client = ScramClient(mechanism, token_id, password, "client", by_token=True)
    costly = server.step(client.first())
    assert isinstance(costly, Costly), "the work holds up the event loop"
    challenge = costly.work()
    assert isinstance(challenge, Challenge)
    done = server.step(client.step(challenge.token) or b"")
    assert isinstance(done, Accepted | Rejected)
    if isinstance(done, Accepted):
        assert client.step(done.token) is None
    return done


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_whoever_has_the_hmac_is_the_owner(bench: Bench, mechanism: ScramMechanism) -> None:
    token = create(bench, ALICE, owner="User:b:ob")
    done = login(bench, mechanism, token.token_id, password_of(token.hmac))
    assert isinstance(done, Accepted)
    assert (done.name, done.delegation_token) == ("b:ob", token.token_id)
    assert done.until_ms == token.expiration_timestamp_ms


def test_who_is_refused(bench: Bench) -> None:
    token, other = create(bench), create(bench)
    password, sha512 = password_of(token.hmac), ScramMechanism.SCRAM_SHA_512
    altered = password_of(bytes([token.hmac[0] ^ 1]) + token.hmac[1:])
    same = Rejected("wrong user or password", Cause.CREDENTIALS)
    assert login(bench, sha512, token.token_id, altered) == same
    assert login(bench, sha512, other.token_id, password) == same
    assert login(bench, sha512, "nobody", password_of(token_hmac(KEY, "nobody"))) == same, "a token that was never made"
    assert login(bench, sha512, token.token_id, password, "another key") == same
    bench.wall_ms = token.expiration_timestamp_ms
    assert isinstance(login(bench, sha512, token.token_id, password), Accepted)
    bench.wall_ms += 1
    assert login(bench, sha512, token.token_id, password) == same, "expired"
    bench.wall_ms -= 1
    assert expire(bench, token) is ErrorCode.NONE
    assert login(bench, sha512, token.token_id, password) == same, "removed"


def test_salts_tell_nothing_of_tokens(bench: Bench) -> None:
    """All nodes name the same, also for tokens that are not there, and none is a part of an HMAC."""
    token = create(bench)
    image = bench.controller.committed
    nodes = [TokenCredentials(KEY, lambda: image.delegation_tokens, lambda: bench.wall_ms) for _ in range(2)]
    for token_id in (token.token_id, "nobody"):
        for mechanism in ScramMechanism:
            one, other = (node.find(token_id, mechanism).credential for node in nodes)
            assert (one.salt, one.iterations) == (other.salt, other.iterations)
            assert one.salt not in token_hmac(KEY, token_id)


def test_where_there_is_no_key_the_extension_is_refused() -> None:
    server = ScramServer(ScramMechanism.SCRAM_SHA_512, None, "server")  # type: ignore[arg-type]
    assert isinstance(server.step(b"n,,n=id,r=abc,tokenauth=true"), Rejected)


@pytest.mark.parametrize(
    ("extensions", "by_token"),
    [
        (b",tokenauth=true", True),
        (b",tokenauth=TRUE", True),
        (b",x=y,tokenauth=true", True),
        (b",tokenauth=false", False),
        (b",nottokenauth=true", False),
        (b"", False),
    ],
)
def test_what_says_that_a_name_is_a_tokens_id(bench: Bench, extensions: bytes, by_token: bool) -> None:
    token = create(bench)
    known = TokenCredentials(KEY, lambda: bench.controller.committed.delegation_tokens, lambda: bench.wall_ms)
    users: list[str] = []

    def find_user(name: str, mechanism: ScramMechanism) -> object:
        users.append(name)
        return known.find("nobody", mechanism).credential

    server = ScramServer(ScramMechanism.SCRAM_SHA_512, find_user, "s", known.find)  # type: ignore[arg-type]
    step = server.step(b"n,,n=" + token.token_id.encode() + b",r=abc" + extensions)
    assert isinstance(step, Costly if by_token else Challenge)
    assert users == ([] if by_token else [token.token_id])
