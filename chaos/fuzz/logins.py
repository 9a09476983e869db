"""Hostile logins, by the million, against the code that processes them behind both kinds of listener.

Mostly no socket is involved, so that ten million inputs take minutes and the time that each holds the event loop is
known; one conversation in a hundred is hand-made HTTP/2 at a real gRPC listener (:mod:`tidelog.chaos.fuzz.http2`). In a
*conversation* a client logs in, with the right secret or a wrong one, and most of its messages are damaged on the way:
SaslHandshake and SaslAuthenticate of Kafka's protocol, bare tokens, the calls of the gRPC listeners and the tokens that
those issue, requests with a password or token at the HTTP listener, and the first frames of Raft streams. Each follows
from the seed and its number alone, except for nonces and keys.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.logins import LoggedIn, Logins, NodeLogins
from tidelog.broker.handlers.logins import EXCHANGES_MAX, TokenLogins
from tidelog.broker.kafka.login import AUTHENTICATE_MOST, SASL_AUTHENTICATE, SASL_HANDSHAKE, KafkaLogin
from tidelog.broker.kafka.wire.pending import CloseConnection
from tidelog.chaos.fuzz import doors
from tidelog.chaos.fuzz.frames import API_VERSIONS, damaged, some_tags
from tidelog.chaos.fuzz.http2 import Http2Door, conversation
from tidelog.cli.local.process import mark_of, use_of
from tidelog.client.admin.users import ScramCredentialInfo, UserScramCredentialUpsertion, salted
from tidelog.metadata_quorum.controller.scram_changes import SECRET_BYTES, first_users
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.http_auth import BASIC, BEARER
from tidelog.model.settings.listener_security import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from tidelog.proto.calls.convert import BadMessage as BadCall
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.kafka.messages import encode_request
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.grpc_wire import LOGIN_METADATA_MAX
from tidelog.proto.transport.network import BadFrame, CallContext
from tidelog.proto.transport.raft_messages import HELLO_BYTES_MAX, encode_hello
from tidelog.security import scram
from tidelog.security.oauthbearer import OAuthClient
from tidelog.security.sasl import ClientMechanism, LoginRefused, PlainClient
from tidelog.security.scram import BY_SASL_NAME, ScramClient
from tidelog.security.session import FindSession

HOLD_S_MAX: Final = 0.005
"""Maximum time that one input before or during a login may hold the event loop, in processor time."""
GROWTH_BYTES_MAX: Final = 32 * 2**20
"""Maximum growth of resident memory between the first fifth of the inputs and the end."""
FAULTS_MAX: Final = 20
KAFKA: Final = "KAFKA"
GRPC: Final = "CLIENT"
SECRETS: Final = {"alice": "alice's own words", "bob": "pëncil, =2C"}
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, PLAIN)
_WEIGHTS: Final = (8, 8, 6, 1)
"""A password of PLAIN costs milliseconds of a thread, whoever sends it."""
_ISSUER: Final = "https://issuer.example"
_AUDIENCE: Final = "fuzz"
_TRIES: Final = 4
"""Conversations that held the loop for long are repeated; the shortest time counts."""
_SAY_S: Final = 10.0
_KEPT_BYTES: Final = 2_000
"""Size of the prefix that is kept of a message to make others from."""
_PROOFS_KEPT: Final = 1_000
_STEPS_MAX: Final = 12
_SOCKET_SHARE: Final = 0.01
_HTTP_SHARE: Final = 0.12
_HELLO_SHARE: Final = 0.03
_WIDE_SHARE: Final = 0.002
_WIDE: Final = (
    b"\x01", b"\0", b",", b"=", b" ", b"a", b"n,,", b",a=b", b"auth=Bearer x\x01", b"auth=bearer ", b"{\"a\":", b"[",
    b"=2C", b"\xff", b"r=", b".", b"e30.", b"\xc3\xa9",
)  # fmt: skip
"""Fillings for a message, up to the limit of what is received."""
_WIDE_CALL: Final = (b"\x0a\0", b"\x12\0", b"\x1a\0", b"\x22\0", b"\xa3\x06\xa4\x06", b"\xa0\x06\0", b"\x0a\1a")
"""The same for the protobuf message of a call: repeated fields, known and unknown."""

Say = Callable[[str], None]


@dataclass(slots=True)
class LoginReport:
    """The outcomes of the inputs. ``faults`` is empty if the logins held."""

    inputs: int = 0
    conversations: int = 0
    let_in: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """How conversations ended."""
    longest_hold_s: float = 0.0
    slowest: int = -1
    """The conversation with that hold."""
    warm_bytes: int = 0
    end_bytes: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)


class _Node:
    """The logins of a node with two users, at a listener of each protocol."""

    def __init__(self, directory: Path) -> None:
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": "k", "use": "sig"}
        (directory / "jwks.json").write_text(json.dumps({"keys": [public]}))
        now = int(time.time())
        said = {"iss": _ISSUER, "aud": _AUDIENCE, "iat": now, "exp": now + 86_400}
        stranger = ec.generate_private_key(ec.SECP256R1())

        def signed(by: ec.EllipticCurvePrivateKey) -> dict[str, str]:
            return {user: jwt.encode({**said, "sub": user}, by, "ES256", headers={"kid": "k"}) for user in SECRETS}

        self.tokens, self.foreign_tokens = signed(key), signed(stranger)
        users = [
            salted(UserScramCredentialUpsertion(user, words, ScramCredentialInfo(how)))
            for user, words in SECRETS.items()
            for how in BY_SASL_NAME.values()
        ]
        records = first_users(users, lambda: bytes(SECRET_BYTES))
        image, _ = apply_records(MetadataImage(), records, Offset(0), ControllerEpoch(1))
        settings = {
            "node.id": "1",
            "listener.security.protocol.map": f"{KAFKA}:SASL_PLAINTEXT,{GRPC}:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": (directory / "jwks.json").absolute().as_uri(),
            "sasl.oauthbearer.expected.issuer": _ISSUER,
            "sasl.oauthbearer.expected.audience": _AUDIENCE,
            "connection.failed.authentication.delay.ms": "0",
        }
        config = NodeConfig.parse(settings)
        self.logins = NodeLogins(config, lambda: image, SystemClock())
        kafka = self.logins.find(KAFKA)
        assert kafka is not None
        self.kafka: Logins = kafka
        self.grpc = TokenLogins(self.logins.find, AccessControl(config))
        settings["http.listener"] = "HTTP://127.0.0.1:0"
        self.http = [
            doors.HttpDoor(NodeConfig.parse(settings | {"http.auth": auth}), image) for auth in (BASIC, BEARER)
        ]

    def close(self) -> None:
        self.logins.close()
        for door in self.http:
            door.close()

    def shows(self, user: str, message: bytes) -> bool:
        """Return whether a message contains a secret that suffices for a login: damage may graft it whole from
        another's."""
        return self.tokens[user].encode() in message or f"\0{user}\0{SECRETS[user]}".encode() in message

    def shows_http(self, sent: bytes) -> bool:
        """Return whether requests contain a secret of anybody that suffices at the HTTP listener."""
        meant = doors.in_base64(sent)
        return any(
            self.tokens[user].encode() in sent or f"{user}:{words}".encode() in meant for user, words in SECRETS.items()
        )


class _Client:
    """A client that logs in as somebody, with the right secret or without."""

    def __init__(self, rng: random.Random, node: _Node) -> None:
        self.user = rng.choice(list(SECRETS))
        self.right = rng.random() < 0.4
        self.mechanism = rng.choices(MECHANISMS, _WEIGHTS)[0]
        words = SECRETS[self.user] if self.right else "wrong"
        self._made: ClientMechanism
        if self.mechanism == OAUTHBEARER:
            token = (node.tokens if self.right else node.foreign_tokens)[self.user]
            self._made = OAuthClient(lambda: token)
        elif self.mechanism == PLAIN:
            self._made = PlainClient(self.user, words)
        else:
            nonce = f"{rng.getrandbits(120):x}"
            self._made = ScramClient(BY_SASL_NAME[self.mechanism], self.user, words, nonce)
        self._began = False

    def answer(self, challenge: bytes) -> bytes:
        """Return the next message; something else if a real client would give up."""
        if not self._began:
            self._began = True
            return self._made.first()
        try:
            return self._made.step(challenge) or b""
        except LoginRefused:
            return challenge


class _Harm:
    """Damages messages on the way, if enabled."""

    def __init__(self, rng: random.Random, others: list[bytes]) -> None:
        self._rng = rng
        self._others = others
        self.share = 0.0 if rng.random() < 0.1 else rng.choice((0.1, 0.3, 0.6, 1.0))

    @property
    def honest(self) -> bool:
        return not self.share

    def done_to(self, message: bytes, most: int, wide: Sequence[bytes] = _WIDE) -> bytes:
        rng = self._rng
        self._others[int(rng.random() * len(self._others))] = message[:_KEPT_BYTES]
        if rng.random() >= self.share:
            return message
        if rng.random() < _WIDE_SHARE:
            unit = rng.choice(wide)
            size = int(most * rng.random()) // len(unit)
            head = message[: int(rng.random() * len(message))]
            return (head + unit * size + rng.choice((b"", b"\x01\x01", message)))[: most - 64]
        if rng.random() < 0.05:
            return rng.randbytes(int(rng.expovariate(0.01)))
        # Framed as a request's body, so that damage hits its start as often as the rest.
        return damaged(rng, bytes(14) + message, self._others)[14:]


class LoginFuzz:
    """Conversations of one seed with one node's logins."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.report = LoginReport()
        self._node = _Node(directory)
        self.logins = self._node.logins
        self._seed = seed
        self._others = [bytes(20)] * 256
        find = self._node.grpc.sessions(GRPC)
        assert find is not None
        self._door = Http2Door(self._node.grpc.authenticate, find)

    async def run(self, inputs: int, first: int = 0, say: Say = lambda line: None) -> LoginReport:
        """Hold conversations until the node has received this many inputs."""
        slow = scram.salted_password
        # Our clients' proofs would cost milliseconds each, but the fuzzing targets the other side.
        setattr(scram, "salted_password", functools.lru_cache(_PROOFS_KEPT)(slow))  # noqa: B010
        await self._door.open()
        self._raft = doors.RaftDoor()
        try:
            return await self._run(inputs, first, say)
        finally:
            await self._door.close()
            setattr(scram, "salted_password", slow)  # noqa: B010
            self._node.close()

    async def _run(self, inputs: int, first: int, say: Say) -> LoginReport:
        report = self.report
        began = said = time.monotonic()
        gc.collect()
        gc.freeze()
        number = first
        while report.inputs < inputs and len(report.faults) < FAULTS_MAX:
            hold_s = await self._timed(number)
            if hold_s > HOLD_S_MAX:
                hold_s = min([hold_s, *[await self._again(number) for _ in range(_TRIES - 1)]])
                if hold_s > HOLD_S_MAX:
                    report.fault(f"conversation {number}: held the loop for {hold_s * 1000:.1f} ms")
            if hold_s > report.longest_hold_s:
                report.longest_hold_s, report.slowest = hold_s, number
            number += 1
            if not report.warm_bytes and report.inputs >= inputs // 5:
                report.warm_bytes = _memory_bytes()
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                rate = report.inputs / (said - began)
                say(
                    f"{said - began:6.0f} s  {report.inputs:>10,} inputs ({rate:,.0f}/s), {report.let_in:,} let in, "
                    f"longest hold {report.longest_hold_s * 1000:.1f} ms, {_memory_bytes() / 1e6:.0f} MB"
                )
        report.conversations = number - first
        report.seconds = time.monotonic() - began
        report.end_bytes = _memory_bytes()
        if report.end_bytes > report.warm_bytes + GROWTH_BYTES_MAX:
            report.fault(f"memory: {report.warm_bytes / 1e6:.0f} MB warm, {report.end_bytes / 1e6:.0f} MB at the end")
        under_way = len(self._node.grpc._exchanges)
        if under_way > EXCHANGES_MAX:
            report.fault(f"{under_way} logins under way are kept, expected at most {EXCHANGES_MAX}")
        gc.unfreeze()
        return report

    async def _timed(self, number: int) -> float:
        """Hold a conversation; return the longest time that one of its inputs held the loop."""
        rng = random.Random(f"{self._seed}:{number}")
        self._longest_s = 0.0
        kind = self._kafka if rng.random() < 0.7 else self._grpc
        door = random.Random(f"{self._seed}:{number}:socket").random()
        for share, other in ((_SOCKET_SHARE, self._socket), (_HTTP_SHARE, self._http), (_HELLO_SHARE, self._hello)):
            if 0 <= door < share:
                kind = other
            door -= share
        try:
            self.report.ended[await kind(rng, number)] += 1
        except (BadMessage, BadCall, BadFrame, CloseConnection) as over:
            self.report.ended[type(over).__name__] += 1
        except Exception as error:  # any exception would end a connection's handler
            self.report.fault(f"conversation {number}: {type(error).__name__}: {error}")
        return self._longest_s

    async def _again(self, number: int) -> float:
        """Repeat it to measure its time only."""
        report, self.report = self.report, LoginReport()
        try:
            return await self._timed(number)
        finally:
            self.report = report

    # --- Kafka's protocol --------------------------------------------------------------------------------

    async def _kafka(self, rng: random.Random, number: int) -> str:
        login = KafkaLogin(self._node.kafka, lambda header, body: bytes(64))
        harm, client = _Harm(rng, self._others), _Client(rng, self._node)
        now_s, before = 0.0, None
        version = rng.choice((0, 1, 1))
        frames = self._frames(rng, client, version, harm)
        sent = next(frames)
        for _ in range(_STEPS_MAX):
            frame = harm.done_to(sent, login.receive_bytes_max)
            if not login.takes(memoryview(frame.ljust(8, b"\0")), now_s):
                return "is let in"
            began_s = time.thread_time()
            self.report.inputs += 1
            try:
                reply = await login.take(memoryview(frame))
            finally:
                self._longest_s = max(self._longest_s, time.thread_time() - began_s)
            if reply.over is not None:
                return self._judged(harm, client, None, number, frame, before)
            if reply.logged_in is not None:
                ended = self._judged(harm, client, reply.logged_in, number, frame, before)
                if rng.random() < 0.5:
                    return ended
                before, client, now_s = reply.logged_in, _Client(rng, self._node), now_s + 2  # it logs in again
                frames = self._frames(rng, client, version, harm)
                sent = next(frames)
                continue
            sent = frames.send(_auth_bytes(reply.answer, bare=login.bare))
        return "goes on"

    def _frames(self, rng: random.Random, client: _Client, version: int, harm: _Harm) -> Generator[bytes, bytes, None]:
        """Yield the frames of a login; each gets the answer to the previous one."""
        if rng.random() < 0.2:
            yield _request(rng, API_VERSIONS, 0, {})
        asked = client.mechanism if rng.random() < 0.97 or harm.honest else rng.choice(("GSSAPI", "", "x" * 9_000))
        yield _request(rng, SASL_HANDSHAKE, version, {"mechanism": asked})
        challenge = b""
        most = self._node.kafka.receive_bytes_max
        while True:
            token = harm.done_to(client.answer(challenge), most // 2)
            if version == 0:
                challenge = yield token
            else:
                newest = rng.randrange(AUTHENTICATE_MOST + 1)
                challenge = yield _request(rng, SASL_AUTHENTICATE, newest, {"auth_bytes": token})

    # --- gRPC --------------------------------------------------------------------------------------------

    async def _grpc(self, rng: random.Random, number: int) -> str:
        harm, client, node = _Harm(rng, self._others), _Client(rng, self._node), self._node
        find = node.grpc.sessions(GRPC)
        assert find is not None
        exchange, challenge = b"", b""
        for _ in range(_STEPS_MAX):
            host = "10.0.0.1" if rng.random() < 0.95 or harm.honest else "10.0.0.2"
            context = CallContext(GRPC, f"ipv4:{host}:5000")
            mechanism = client.mechanism if harm.honest or rng.random() < 0.97 else rng.choice(("GSSAPI", "\0" * 9_000))
            known = harm.done_to(exchange, 4_096) if rng.random() < 0.1 else exchange
            token = harm.done_to(client.answer(challenge), node.kafka.receive_bytes_max + 1_000)
            sent = harm.done_to(to_proto(SaslAuthenticateRequest(mechanism, known, token)), LOGIN_METADATA_MAX)
            if not harm.honest and rng.random() < _WIDE_SHARE:
                sent += rng.choice(_WIDE_CALL) * LOGIN_METADATA_MAX
            sent = sent[:LOGIN_METADATA_MAX]  # gRPC refuses a longer one
            began_s = time.thread_time()
            self.report.inputs += 1
            try:
                found = await node.grpc.authenticate(from_proto(SaslAuthenticateRequest, sent), context)
                to_proto(found)
            finally:
                self._longest_s = max(self._longest_s, time.thread_time() - began_s)
            if found.error is not ErrorCode.NONE:
                return self._judged(harm, client, None, number, sent)
            if found.session_token:
                self._check_session(rng, find, found.session_token, host, client, number, sent)
                return "is let in"
            exchange, challenge = found.exchange, found.auth_bytes
        return "goes on"

    async def _socket(self, rng: random.Random, number: int) -> str:
        """Send a stranger's HTTP/2; a caller that presents part of a login goes through the same judge as all
        others."""
        client = _Client(rng, self._node)
        client.right = False
        login = to_proto(SaslAuthenticateRequest(client.mechanism, b"", client.answer(b"")))
        self.report.inputs += 1
        self._longest_s = await self._door.visit(rng, login, self._others)
        if self._door.begun:
            self.report.fault(f"conversation {number}: a call of a stranger was served")
            self._door.begun = 0
        return "leaves a socket"

    # --- HTTP and Raft -----------------------------------------------------------------------------------

    async def _http(self, rng: random.Random, number: int) -> str:
        harm, client, node, report = _Harm(rng, self._others), _Client(rng, self._node), self._node, self.report
        door = rng.choice(node.http)
        if door.scheme == BASIC:
            shown = f"{client.user}:{SECRETS[client.user] if client.right else 'wrong'}".encode()
        else:
            shown = (node.tokens if client.right else node.foreign_tokens)[client.user].encode()
        sent = b""
        for _ in range(rng.choice((1, 1, 1, 2, 20))):
            report.inputs += 1
            request = doors.http_request(rng, door.scheme, shown, plain=harm.honest)
            if not harm.honest and rng.random() < 0.02:
                request = conversation(rng, shown)  # a gRPC client at the wrong port
            sent += harm.done_to(request, doors.REQUEST_MOST, doors.WIDE)
        answers = await door.visit(doors.in_pieces(rng, sent), self._hold)
        let_in = doors.FIGURES in answers
        report.let_in += let_in
        if let_in and not node.shows_http(sent):
            report.fault(f"conversation {number}: shows metrics without a secret")
        if harm.honest and client.right and not let_in:
            report.fault(f"conversation {number}: {client.user} sees no metrics with the right secret")
        return "sees metrics" if let_in else "gets an answer" if answers else "gets no answer"

    async def _hello(self, rng: random.Random, number: int) -> str:
        harm, report = _Harm(rng, self._others), self.report
        report.inputs += 1
        frame = harm.done_to(encode_hello(self._raft.hello(rng)), 2 * HELLO_BYTES_MAX, _WIDE_CALL)
        began_s = time.thread_time()
        try:
            refused = self._raft.judge(frame)
        finally:
            self._hold(time.thread_time() - began_s)
        return "is no controller" if refused else "is a controller"

    def _hold(self, held_s: float) -> None:
        self._longest_s = max(self._longest_s, held_s)

    def _check_session(
        self, rng: random.Random, find: FindSession, token: str, host: str, client: _Client, number: int, shown: bytes
    ) -> None:
        """Check that the token is valid as issued, where it was issued, and nowhere else."""
        report = self.report
        report.let_in += 1
        known = find(token, host)
        if known is None or not self._is_entitled(client, known.principal.name, shown):
            report.fault(f"conversation {number}: {client.user} got a session as {known}, right secret: {client.right}")
        for _ in range(3):
            report.inputs += 1
            other = damaged(rng, bytes(14) + token.encode(), self._others)[14:].decode("latin-1")
            if other != token and find(other, host) is not None:
                report.fault(f"conversation {number}: a damaged token of {len(other)} characters is good")
        if find(token, "10.9.9.9") is not None:
            report.fault(f"conversation {number}: a token is good at another address")

    # --- The judge ---------------------------------------------------------------------------------------

    def _is_entitled(self, client: _Client, name: str, shown: bytes) -> bool:
        return (client.right and client.user == name) or self._node.shows(name, shown)

    def _judged(
        self,
        harm: _Harm,
        client: _Client,
        found: LoggedIn | None,
        number: int,
        shown: bytes,
        before: LoggedIn | None = None,
    ) -> str:
        """Judge that nobody is admitted without a secret, or as somebody else, and that an undisturbed client with the
        right secret is. ``shown``: the last answer."""
        report = self.report
        if found is None:
            if harm.honest and client.right and before is None:
                report.fault(f"conversation {number}: {client.user} is refused with the right secret")
            return "is refused"
        report.let_in += 1
        name = found.session.principal.name
        if not self._is_entitled(client, name, shown):
            report.fault(f"conversation {number}: came in as {name}, is {client.user}, right secret: {client.right}")
        if before is not None and before.session.principal.name != name:
            report.fault(f"conversation {number}: was {before.session.principal.name}, became {name}")
        return "is let in"


def _request(rng: random.Random, key: int, version: int, values: Mapping[str, object]) -> bytes:
    body = encode_request(key, version, dict(values))
    tags = b""
    if key == SASL_AUTHENTICATE and version == AUTHENTICATE_MOST:
        tags = some_tags(rng, rng.choice((1, 64, 65))) if rng.random() < 0.01 else b"\0"
    return b"".join((key.to_bytes(2, "big"), version.to_bytes(2, "big"), bytes(4), b"\0\4fuzz", tags, body))


def _auth_bytes(answer: bytes, *, bare: bool) -> bytes:
    """Return the mechanism's message in an answer to SaslAuthenticate; found by its shape, as versions differ."""
    if bare:
        return answer
    at = answer.find(b"r=")
    if at < 0:
        return b""
    end = answer.find(b",i=", at) + 3
    while end < len(answer) and answer[end : end + 1].isdigit():
        end += 1
    return answer[at:end]


def _memory_bytes() -> int:
    mark = mark_of(os.getpid())
    use = None if mark is None else use_of(mark)
    return 0 if use is None else use.memory_bytes
