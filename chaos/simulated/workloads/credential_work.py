"""Passwords and delegation tokens that change while a simulated cluster is working, and clients that log in with them,
with old ones too, and keep sending requests under their logins.

Judged, besides the checks of every run: each node accepts a login, and serves a request under one, exactly if the
credentials in its own image are valid by its own clock; so that nobody is served after a revocation has reached the
node, or after a token or a login has expired. No token outlives its maximum lifetime, and none is renewed after its
expiry. Once all is repaired, every node has every change that was confirmed to the administrator.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.watch.in_force import ImagesInForce
from tidelog.chaos.simulated.workloads.node_client import TRY_S, NodeClient, address_of
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    DescribedDelegationToken,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    ScramDeletion,
    ScramUpsertion,
)
from tidelog.proto.transport.lasting import LOG_IN_AGAIN
from tidelog.proto.transport.network import CallTimeout, ConnectionLost
from tidelog.security.delegation_tokens import password_of
from tidelog.security.principal import USER, Principal
from tidelog.security.sasl import LoginRefused
from tidelog.security.scram import ITERATIONS_MIN, ScramClient, ScramMechanism
from tidelog.security.session import Session

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

KEEPER: Final = "keeper"
TOPIC: Final = "vault"
USERS: Final = ("alice", "bob")
CLIENTS: Final = ("caller-1", "caller-2", "caller-3")
MECHANISM: Final = ScramMechanism.SCRAM_SHA_256
EXPIRY_MS: Final = 5_000
LIFETIME_MS: Final = 12_000
REAUTH_MS: Final = 6_000
SWEEP_MS: Final = 3_000
SETTINGS: Final = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "delegation.token.secret.key": "the key of all nodes",
    "delegation.token.expiry.time.ms": str(EXPIRY_MS),
    "delegation.token.max.lifetime.ms": str(LIFETIME_MS),
    "delegation.token.expiry.check.interval.ms": str(SWEEP_MS),
    "connections.max.reauth.ms": str(REAUTH_MS),
    "connection.failed.authentication.delay.ms": "20",
}
"""Settings of every node."""
DRIFT: Final = 0.06
"""More than the share by which the clocks of two processes may differ."""
_LOST: Final = (ConnectionLost, CallTimeout, TimeoutError)


@dataclass(frozen=True, slots=True)
class Credential:
    """A client's credential: a user's password, identified by its ``salt``, or a delegation token."""

    name: str
    password: str
    salt: bytes = b""
    by_token: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """A successful login at a node. Times are the simulation's."""

    node: Node
    credential: Credential
    token: str
    began_s: float
    ended_s: float
    lifetime_s: float


class CredentialWork:
    """Implements :class:`tidelog.chaos.simulated.world.work.Work`."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.operations = 0
        self._rng = random.Random(sim.rng.random())
        self.stopping = False
        self.quiet = False
        """Whether credentials stay unchanged from now on."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.images = ImagesInForce(sim.cluster, lambda: sim.now_s)
        self.shown: list[Credential] = []
        """Everything that was ever valid, the newest last."""
        self._tokens: list[DescribedDelegationToken] = []
        self._salts: dict[str, bytes | None] = {}
        """User → the salt of the required password; ``None``: no password."""
        self._gone: set[str] = set()
        """Tokens that must be gone."""
        self._unsure: set[str] = set()
        """Users and tokens in an unknown state: a change, or a copy of one, may still take effect."""
        for name in (KEEPER, *CLIENTS):
            # A client that has not logged in is the administrator; nobody eavesdrops.
            sim.cluster.fabric.sessions[name] = Session(Principal(USER, KEEPER), SecurityProtocol.SASL_SSL)

    async def begin(self) -> None:
        cluster = self.sim.cluster
        await cluster.create_topic(TOPIC, 1, 3)
        for name in (KEEPER, *CLIENTS):
            process = cluster.client_process(name)
            client = NodeClient(cluster.fabric.network(name, context=process.context))
            work = self._keep(client) if name == KEEPER else Caller(self, client).run()
            self._tasks[name] = cluster.run_in(process, work)

    async def settle(self, bound_s: float) -> None:
        self.quiet = True
        await asyncio.wait([self._tasks[KEEPER]])
        await asyncio.sleep(2 * TRY_S)
        await self.sim.cluster.wait_for(self._level, "the same credentials on every node, and no old token", bound_s)

    def judge(self) -> None:
        image = self.sim.cluster.image
        for user, salt in self._salts.items():
            found = image.users.get((user, MECHANISM))
            if user not in self._unsure and (None if found is None else found.salt) != salt:
                self.sim.world.violated(f"credentials: {user} has not the password that was acknowledged, or still one")
        for token_id in sorted(self._gone - self._unsure):
            if token_id in image.delegation_tokens:
                self.sim.world.violated(f"credentials: token {token_id} is there, though its end was acknowledged")

    async def finish(self) -> None:
        self.stopping = True
        await asyncio.wait(self._tasks.values())

    def failures(self) -> list[tuple[str, BaseException | None]]:
        ended = [(name, task) for name, task in self._tasks.items() if task.done() and not task.cancelled()]
        return [(name, task.exception()) for name, task in ended]

    def _level(self) -> bool:
        """Return whether all nodes know the same, and no token remains that should have been removed by now."""
        images = [node.view.image for node in self.sim.cluster.nodes.values()]
        users, tokens = dict(images[0].users), dict(images[0].delegation_tokens)
        swept_ms = self._earliest_ms() - 2 * SWEEP_MS
        return all(token.max_timestamp_ms >= swept_ms for token in tokens.values()) and all(
            dict(image.users) == users and dict(image.delegation_tokens) == tokens for image in images
        )

    # --- the administrator --------------------------------------------------------------------------------

    async def _keep(self, client: NodeClient) -> None:
        rng = self._rng
        while not self.quiet:
            await asyncio.sleep(rng.choice((0.05, 0.3, 0.8)) * 2 * rng.random())
            node_id = rng.choice(self.sim.cluster.node_ids)
            if self.images.watched(node_id) is None:
                continue
            self.operations += 1
            act = rng.choice(
                (self._set, self._set, self._delete, self._create, self._create, self._renew, self._expire)
            )
            try:
                await act(client, node_id)
            except _LOST:
                await client.hang_up(node_id)
        for node_id in self.sim.cluster.node_ids:
            await client.hang_up(node_id)

    async def _set(self, client: NodeClient, node_id: NodeId) -> None:
        user, salt = self._rng.choice(USERS), self._rng.randbytes(16)
        password = f"password of {salt.hex()}"
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS_MIN)
        made = ScramUpsertion(user, MECHANISM, ITERATIONS_MIN, salt, salted)
        self.shown.append(Credential(user, password, salt))
        await self._alter(client, node_id, user, salt, AlterUserScramCredentialsRequest(upsertions=(made,)))

    async def _delete(self, client: NodeClient, node_id: NodeId) -> None:
        user = self._rng.choice(USERS)
        gone = AlterUserScramCredentialsRequest(deletions=(ScramDeletion(user, MECHANISM),))
        await self._alter(client, node_id, user, None, gone)

    async def _alter(
        self,
        client: NodeClient,
        node_id: NodeId,
        user: str,
        salt: bytes | None,
        request: AlterUserScramCredentialsRequest,
    ) -> None:
        before = user in self._unsure
        self._unsure.add(user)
        answer = await client.call(node_id, request)
        if (answer.error or answer.results[0].error) is not ErrorCode.NONE:
            if answer.results and answer.results[0].error is ErrorCode.RESOURCE_NOT_FOUND and not before:
                self._unsure.discard(user)
            return
        self.events["password-set" if salt else "user-deleted"] += 1
        self._salts[user] = salt
        if not before:
            self._unsure.discard(user)

    async def _create(self, client: NodeClient, node_id: NodeId) -> None:
        life_ms = self._rng.choice((-1, 2_000, 8_000))
        owner = f"{USER}:{self._rng.choice(USERS)}"
        answer = await client.call(node_id, CreateDelegationTokenRequest(owner, (f"{USER}:{KEEPER}",), life_ms))
        if answer.token is None:
            return
        self.events["token-created"] += 1
        self._tokens.append(answer.token)
        password = password_of(answer.token.hmac)
        self.shown.append(Credential(answer.token.token_id, password, by_token=True))

    async def _renew(self, client: NodeClient, node_id: NodeId) -> None:
        token = self._any_token()
        if token is None:
            return
        known = self.sim.cluster.image.delegation_tokens.get(token.token_id)
        before_ms = self._earliest_ms()
        answer = await client.call(node_id, RenewDelegationTokenRequest(token.hmac))
        if answer.error is not ErrorCode.NONE:
            self.events["renewal-refused"] += 1
            return
        self.events["token-renewed"] += 1
        earliest_ms = min(before_ms, self._earliest_ms())
        if known is not None and token.max_timestamp_ms < earliest_ms:
            self.sim.world.violated(f"credentials: token {token.token_id} was renewed after its longest life")
        if answer.expiry_timestamp_ms > token.max_timestamp_ms:
            self.sim.world.violated(f"credentials: token {token.token_id} was renewed beyond its longest life")

    async def _expire(self, client: NodeClient, node_id: NodeId) -> None:
        token = self._any_token()
        if token is None:
            return
        self._unsure.add(token.token_id)
        answer = await client.call(node_id, ExpireDelegationTokenRequest(token.hmac))
        if answer.error is ErrorCode.NONE:
            self.events["token-expired"] += 1
            self._gone.add(token.token_id)
            self._unsure.discard(token.token_id)

    def _any_token(self) -> DescribedDelegationToken | None:
        return self._rng.choice(self._tokens[-4:]) if self._tokens else None

    def _earliest_ms(self) -> int:
        """Return the time on the clock that is furthest behind."""
        return min(host.clock.now_ms() for host in self.sim.cluster.hosts.values())

    # --- the judge ----------------------------------------------------------------------------------------

    def clock_ms(self, node_id: NodeId) -> int:
        """Return the time on a node's clock."""
        return self.sim.cluster.hosts[node_id].clock.now_ms()

    def judged(
        self,
        what: str,
        node_id: NodeId,
        node: Node,
        credential: Credential,
        began: tuple[float, int],
        taken: bool,
        login: Login | None = None,
    ) -> None:
        """Judge a credential that a node accepted or refused since a moment, by the simulation's time and the node's
        clock; with ``login``, a request under it."""
        began_s, began_ms = began
        in_force = self.images.since(node_id, node, began_s)
        if not in_force:
            return
        clocks_ms = (began_ms, self.clock_ms(node_id))
        good = {
            is_good(one.image, credential, clock_ms, logs_in=login is None)
            for one in in_force
            for clock_ms in clocks_ms
        }
        lasts = {True}
        if login is not None:
            over_s = self.sim.now_s - login.began_s, began_s - login.ended_s
            lasts = {True} if over_s[0] < login.lifetime_s * (1 - DRIFT) else {True, False}
            if over_s[1] > login.lifetime_s * (1 + DRIFT):
                lasts = {False}
        self.events[f"{what}-{'taken' if taken else 'refused'}"] += 1
        if len(good) > 1:
            self.events["judged-amid-a-change"] += 1
        if taken not in {a and b for a in good for b in lasts}:
            kind = "token" if credential.by_token else "password"
            self.sim.world.violated(
                f"credentials: {what} by a {kind} of {credential.name} at node {node_id}, asked at {began_s:.6f}: "
                f"expected it to be {'refused' if taken else 'taken'} by the image and clock of the node"
            )


def is_good(image: MetadataImage, credential: Credential, clock_ms: int, *, logs_in: bool = True) -> bool:
    """Return whether a credential is valid for a login; or, unless it ``logs_in``, whether an existing login by it
    stays valid: a changed password affects the next login only."""
    if credential.by_token:
        token = image.delegation_tokens.get(credential.name)
        return token is not None and clock_ms <= min(token.max_timestamp_ms, token.expiration_timestamp_ms)
    known = image.users.get((credential.name, MECHANISM))
    return known is not None and (not logs_in or known.salt == credential.salt)


class Caller:
    """A client that logs in at any node, with valid and invalid credentials, and sends any request under its logins."""

    def __init__(self, work: CredentialWork, client: NodeClient) -> None:
        self._work = work
        self._sim = work.sim
        self._client = client
        self._rng = random.Random(self._sim.rng.random())
        self._logins: dict[NodeId, Login] = {}

    async def run(self) -> None:
        """Ask until the work stops."""
        work, rng = self._work, self._rng
        while not work.stopping:
            await asyncio.sleep(rng.uniform(0.002, 0.08))
            node_id = rng.choice(self._sim.cluster.node_ids)
            node = work.images.watched(node_id)
            if node is None or not work.shown:
                continue
            work.operations += 1
            login = self._logins.get(node_id)
            if login is not None and (login.node is not node or rng.random() < 0.05):
                await self._forget(node_id)
                login = None
            began = self._sim.now_s, work.clock_ms(node_id)
            try:
                async with asyncio.timeout(TRY_S):
                    if login is None:
                        await self._log_in(node_id, node, began)
                    else:
                        await self._ask(node_id, node, login, began)
            except _LOST:
                await self._forget(node_id)
        for node_id in self._sim.cluster.node_ids:
            await self._forget(node_id)

    async def _log_in(self, node_id: NodeId, node: Node, began: tuple[float, int]) -> None:
        rng, shown = self._rng, self._work.shown
        credential = shown[-min(1 + int(rng.expovariate(0.4)), len(shown))]
        nonce = f"{rng.getrandbits(64):x}"
        client = ScramClient(MECHANISM, credential.name, credential.password, nonce, by_token=credential.by_token)
        exchange, message = b"", client.first()
        while True:
            answer = await self._client.call(node_id, SaslAuthenticateRequest(client.name, exchange, message))
            if answer.error is not ErrorCode.NONE:
                assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED, answer
                self._work.judged("login", node_id, node, credential, began, False)
                return
            if answer.session_token:
                break
            exchange, message = answer.exchange, client.step(answer.auth_bytes) or b""
        try:
            client.step(answer.auth_bytes)
        except LoginRefused as refused:
            self._sim.world.violated(f"credentials: a node that took {credential.name} does not know it: {refused}")
        self._work.judged("login", node_id, node, credential, began, True)
        lifetime_s = answer.session_lifetime_ms / 1000
        login = Login(node, credential, answer.session_token, began[0], self._sim.now_s, lifetime_s)
        self._logins[node_id] = login
        self._client.network.logins[address_of(node_id)] = login.token

    async def _ask(self, node_id: NodeId, node: Node, login: Login, began: tuple[float, int]) -> None:
        topic = self._sim.cluster.image.topic(TOPIC)
        assert topic is not None
        try:
            if self._rng.random() < 0.5:
                await self._client.offsets(node_id, TOPIC)
            else:
                await self._client.fetch(node_id, topic.topic_id)
        except ConnectionLost as lost:
            if LOG_IN_AGAIN not in str(lost):
                raise
            self._work.judged("request", node_id, node, login.credential, began, False, login)
            await self._forget(node_id)
        else:
            self._work.judged("request", node_id, node, login.credential, began, True, login)

    async def _forget(self, node_id: NodeId) -> None:
        """Forget a login that the node found to be over, even if its answer was lost: the node forgets it too."""
        self._logins.pop(node_id, None)
        self._client.network.logins.pop(address_of(node_id), None)
        await self._client.hang_up(node_id)
