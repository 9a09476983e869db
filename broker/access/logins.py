"""Logins at one listener: its mechanisms, the known users, and who has logged in.

The mechanisms are pure (:mod:`tidelog.security.sasl`, :mod:`tidelog.security.scram`); this module connects them with
the users of the metadata log, the clock and threads. Kafka and gRPC listeners both use it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.classes.frozen import dataclass
from tidelog.model.clock import Clock
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.config_def import INT_MAX, ConfigError
from tidelog.model.settings.listener_security import OAUTHBEARER, PLAIN, UNPROTECTED, ListenerSecurity
from tidelog.model.settings.listeners import is_this_machine
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.security.delegation_tokens import TokenCredentials
from tidelog.security.issuer import IssuerError, check_url, is_file
from tidelog.security.oauthbearer import Judge, OAuthServer
from tidelog.security.principal import USER, Principal
from tidelog.security.sasl import Accepted, Cause, Challenge, Costly, PlainServer, Rejected, ServerMechanism, Step
from tidelog.security.scram import (
    BY_SASL_NAME,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    StoredCredential,
    is_password_of,
)
from tidelog.security.session import Session

log = logging.getLogger(__name__)

THREADS: Final = 4
"""How many passwords to compare at a time. Each takes some milliseconds."""
LIFETIME_MS_MAX: Final = INT_MAX
"""Maximum session lifetime told to clients, which calculate with it: a login with a token valid for years is repeated
after some weeks."""
MESSAGE_BYTES_MAX: Final = 32 * 1024
"""Maximum length of a login message, twice the longest token. Reading a longer one would block the loop for
milliseconds, and ``sasl.server.max.receive.size`` allows sixteen times as much, as in Kafka."""
NONCE_BYTES: Final = 24
_SALT_BYTES: Final = 32

T = TypeVar("T")
Image = Callable[[], MetadataImage]
Threads = Callable[[str], ThreadPoolExecutor]
"""By mechanism: where its costly steps run."""


class Users:
    """The users of the metadata log, in the form that mechanisms need.

    For an unknown user it returns a *decoy* that no password fits. The decoy's salt and iterations look like a real
    user's and are always the same, on all nodes.
    """

    def __init__(self, image: Image) -> None:
        self._image = image
        self._own_secret = secrets.token_bytes(_SALT_BYTES)
        self._seen: object = None
        """The users that the following fields were computed from."""
        self._shapes: dict[ScramMechanism, list[tuple[int, int]]] = {}
        """By mechanism: each user's iterations and salt length."""
        self._strongest: list[ScramMechanism] = []
        """The mechanism with which PLAIN checks each user."""

    def credential(self, name: str, mechanism: ScramMechanism) -> StoredCredential:
        """A :data:`tidelog.security.scram.FindCredential`."""
        decoy = self._decoy(name, mechanism)  # also for existing users, or the timing would reveal them
        return self._image().users.get((name, mechanism)) or decoy

    def has_password(self, name: str, password: str) -> bool:
        """Return whether it is the user's password, for PLAIN. Takes some milliseconds, for unknown users too."""
        _, decoy = self._pick(f"{PLAIN} {name}", self._strongest_of_all())
        found = _strongest(self._image().users, name) or decoy
        return is_password_of(found, self.credential(name, found), password)

    def watch(self, name: str) -> Callable[[], bool]:
        """Return a check whether the user still exists. It is made for each request, so it searches the users only
        after they have changed."""
        image, seen = self._image, None

        def still() -> bool:
            nonlocal seen
            users = image().users
            if users is not seen:
                if not any((name, each) in users for each in ScramMechanism):
                    return False
                seen = users
            return True

        return still

    def _decoy(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        made, (iterations, size) = self._pick(f"{mechanism.sasl_name} {name}", self._shapes_of(mechanism))
        salt = hashlib.shake_256(made).digest(size)
        nothing = secrets.token_bytes(mechanism.key_bytes)
        return ScramCredential(salt, nothing, nothing, iterations)

    def _pick(self, what: str, choices: Sequence[T]) -> tuple[bytes, T]:
        """Choose one of the choices, and derive bytes; always the same on all nodes."""
        secret = self._image().decoy_secret or self._own_secret  # without users there is nothing to hide
        made = hmac.digest(secret, what.encode(), "sha512")
        return made, choices[int.from_bytes(made[:8], "big") % len(choices)]

    def _shapes_of(self, mechanism: ScramMechanism) -> list[tuple[int, int]]:
        self._look()
        return self._shapes.get(mechanism) or [(ITERATIONS_MIN, _SALT_BYTES)]

    def _strongest_of_all(self) -> list[ScramMechanism]:
        self._look()
        return self._strongest or [ScramMechanism.SCRAM_SHA_512]

    def _look(self) -> None:
        """Load the current users."""
        users = self._image().users
        if self._seen is users:
            return
        shapes: dict[ScramMechanism, list[tuple[int, int]]] = {}
        strongest = []
        for (name, number), record in users.items():
            mechanism = ScramMechanism(number)
            shapes.setdefault(mechanism, []).append((record.iterations, len(record.salt)))
            if mechanism is _strongest(users, name):
                strongest.append(mechanism)
        self._shapes = {mechanism: sorted(found) for mechanism, found in shapes.items()}
        self._strongest = sorted(strongest)
        self._seen = users


def _strongest(users: Container[tuple[str, int]], name: str) -> ScramMechanism | None:
    return next((each for each in reversed(ScramMechanism) if (name, each) in users), None)


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A successful login. ``ends_s`` is on the event loop's clock; ``None``: when the connection ends."""

    session: Session
    token: bytes
    lifetime_ms: int
    """As Kafka tells its clients; 0: unlimited."""
    ends_s: float | None
    still: Callable[[], bool]
    """Whether the user and the delegation token still exist."""

    def over(self, now_s: float) -> bool:
        """Return whether the login has expired."""
        return (self.ends_s is not None and now_s > self.ends_s) or not self.still()


@dataclass(frozen=True, slots=True)
class LoginFailed:
    """``reason`` is for the node's log only, ``tried`` for the audit log: the user that the client claimed to be."""

    reason: str
    tried: str = ""
    cause: Cause = Cause.MESSAGE


class Login:
    """One login exchange. The client learns of a failure after a fixed time, whatever the reason."""

    def __init__(self, logins: Logins, mechanism: str, server: ServerMechanism) -> None:
        self.mechanism = mechanism
        self._logins = logins
        self._server = server

    async def step(self, token: bytes) -> Challenge | LoggedIn | LoginFailed:
        """Process the client's next message."""
        began_s = asyncio.get_running_loop().time()
        found = await self._judge(token)
        match found:
            case Challenge():
                return found
            case Accepted():
                return self._logins.logged_in(found, self.mechanism)
            case _:
                return await self._logins.failed(found.reason, began_s, self._server.tried, found.cause)

    async def _judge(self, token: bytes) -> Challenge | Accepted | Rejected:
        if len(token) > MESSAGE_BYTES_MAX:
            return Rejected(f"expected a message of at most {MESSAGE_BYTES_MAX} bytes, found {len(token)}")
        step: Step = self._server.step(token)
        if isinstance(step, Costly):
            threads = self._logins.threads_of(self.mechanism)
            step = await asyncio.get_running_loop().run_in_executor(threads, step.work)
        return step


class Logins:
    """See the module. ``listener`` must use a protocol with a login."""

    def __init__(
        self,
        config: NodeConfig,
        listener: str,
        users: Users,
        tokens: TokenCredentials | None,
        clock: Clock,
        threads: Threads,
        mechanisms: tuple[str, ...] | None = None,
    ) -> None:
        """``mechanisms``: override those in the listener's settings."""
        found = config.security_of(listener)
        self.mechanisms: Final = found.sasl_enabled_mechanisms if mechanisms is None else mechanisms
        self.receive_bytes_max: Final = found.sasl_server_max_receive_size
        self.threads_of: Final = threads
        self._protocol: SecurityProtocol = config.protocol_of(listener)
        self._reauth_ms = found.connections_max_reauth_ms
        self._delay_s = config.connection_failed_authentication_delay_ms / 1000
        self._users = users
        self._tokens = tokens
        self._clock = clock
        self._judge = _judge_of(listener, found) if OAUTHBEARER in self.mechanisms else None

    def begin(self, mechanism: str) -> Login | None:
        """Start a login with the mechanism; ``None`` if it is not enabled."""
        if mechanism not in self.mechanisms:
            return None
        if mechanism == PLAIN:
            return Login(self, mechanism, PlainServer(self._users.has_password))
        if self._judge is not None and mechanism == OAUTHBEARER:
            return Login(self, mechanism, OAuthServer(self._judge))
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        find_token = None if self._tokens is None else self._tokens.find
        scram = ScramServer(BY_SASL_NAME[mechanism], self._users.credential, nonce, find_token)
        return Login(self, mechanism, scram)

    def logged_in(self, accepted: Accepted, mechanism: str) -> LoggedIn:
        by_token = bool(accepted.delegation_token)
        session = Session(Principal(USER, accepted.name), self._protocol, by_token)
        lifetime_ms = self._reauth_ms
        if accepted.until_ms is not None:
            rest_ms = min(max(1, accepted.until_ms - self._clock.now_ms()), LIFETIME_MS_MAX)
            lifetime_ms = min(lifetime_ms or rest_ms, rest_ms)
        ends_s = asyncio.get_running_loop().time() + lifetime_ms / 1000 if lifetime_ms else None
        return LoggedIn(session, accepted.token, lifetime_ms, ends_s, self._still(accepted, mechanism))

    def _still(self, accepted: Accepted, mechanism: str) -> Callable[[], bool]:
        tokens = self._tokens
        if accepted.delegation_token and tokens is not None:
            return lambda: tokens.is_valid(accepted.delegation_token)  # its owner may have no password
        if mechanism == OAUTHBEARER:
            return lambda: True  # the issuer's users are not the cluster's
        return self._users.watch(accepted.name)

    async def failed(
        self, reason: str, began_s: float | None = None, tried: str = "", cause: Cause = Cause.MESSAGE
    ) -> LoginFailed:
        """Return when the client may learn of the failure. ``began_s``: when it sent the rejected message, by default
        now."""
        now_s = asyncio.get_running_loop().time()
        left_s = (now_s if began_s is None else began_s) + self._delay_s - now_s
        if left_s > 0:
            await asyncio.sleep(left_s)
        return LoginFailed(reason, tried, cause)


def _judge_of(listener: str, found: ListenerSecurity) -> Judge:
    """Return the judge of tokens for a listener. Raises :class:`ConfigError`."""
    try:
        from tidelog.security.token_judge import Expected, IssuerKeys, TokenJudge
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"listener {listener}: {OAUTHBEARER}: {missing}: install it with pip install 'tidelog[security]'"
        ) from None
    setting = "sasl.oauthbearer.jwks.endpoint.url"
    url, issuer = found.sasl_oauthbearer_jwks_endpoint_url or "", found.sasl_oauthbearer_expected_issuer or ""
    try:
        keys = IssuerKeys(check_url(url), found.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000)
        if is_file(url):
            keys.fetch()
    except (ValueError, IssuerError) as error:
        raise ConfigError(f"listener {listener}: {setting}: {error}") from None
    audience, skew_s = found.sasl_oauthbearer_expected_audience, found.sasl_oauthbearer_clock_skew_seconds
    return TokenJudge(keys, Expected(issuer, audience, skew_s, found.sasl_oauthbearer_sub_claim_name))


FindLogins = Callable[[str], Logins | None]
"""Returns the logins of a listener by its name; ``None`` if it has none."""


class NodeLogins:
    """The logins of a node's listeners."""

    def __init__(
        self, config: NodeConfig, image: Image, clock: Clock, only: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``only``: these listeners with their mechanisms, instead of those whose protocol has a login."""
        self._threads = ThreadPoolExecutor(THREADS, "login")  # it starts no thread before there is work
        self._waiting = ThreadPoolExecutor(THREADS, "issuer")
        users = Users(image)
        key = config.delegation_token_secret_key
        tokens = TokenCredentials(key, lambda: image().delegation_tokens, clock.now_ms) if key else None
        if only is not None:
            self._logins = {
                name: Logins(config, name, users, tokens, clock, self._threads_of, mechanisms)
                for name, mechanisms in only.items()
            }
            return
        self._logins = {
            found.name: Logins(config, found.name, users, tokens, clock, self._threads_of)
            for found in config.listeners
            if config.protocol_of(found.name).sasl
        }

        for name, found in self._logins.items():
            if not config.protocol_of(name).tls:
                for mechanism in set(found.mechanisms) & {*UNPROTECTED}:
                    text = "listener %s: %s sends secrets that anyone on the network path can read: use SASL_SSL"
                    log.warning(text, name, mechanism)
        far = [str(voter) for voter in config.controller_quorum_voters if not is_this_machine(voter.host)]
        carrier = config.controller_listener_names[0]
        if self._logins and far and not config.protocol_of(carrier).tls:
            text = "listener %s: its traffic contains users' credentials and goes unencrypted to %s: map it to SSL"
            log.warning(text, carrier, ", ".join(far))

    def find(self, listener: str) -> Logins | None:
        """A :data:`FindLogins`."""
        return self._logins.get(listener)

    def close(self) -> None:
        """Abandon password comparisons in progress."""
        for threads in (self._threads, self._waiting):
            threads.shutdown(wait=False, cancel_futures=True)

    def _threads_of(self, mechanism: str) -> ThreadPoolExecutor:
        """Return a mechanism's threads. They are separate, so that a slow issuer does not hold up passwords."""
        return self._waiting if mechanism == OAUTHBEARER else self._threads
