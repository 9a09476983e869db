"""SCRAM, both ends: messages in, messages out. Pure: the caller supplies nonces and credentials.

Source: RFC 5802 and RFC 7677; numbers, bounds and the plain UTF-8 of passwords as in Kafka (``ScramMechanism``,
``ScramFormatter``, KIP-84, KIP-554). Channel binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import field
from typing import Final, Protocol, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.security.sasl import Accepted, Cause, Challenge, Costly, LoginRefused, Rejected, Step

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds. The upper one protects clients, which compute the iterations."""
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""A client refuses to compute more, whatever a server asks for."""


class ScramMechanism(enum.IntEnum):
    """Kafka's numbers (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name that :mod:`hashlib` uses."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The length of a key and of a salted password."""
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


BY_SASL_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


class StoredCredential(Protocol):
    """What a server stores for a password; implemented by a metadata record."""

    @property
    def salt(self) -> bytes: ...
    @property
    def stored_key(self) -> bytes: ...
    @property
    def server_key(self) -> bytes: ...
    @property
    def iterations(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Implements :class:`StoredCredential`."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


FindCredential: TypeAlias = Callable[[str, ScramMechanism], StoredCredential]
"""Returns a user's credential; for an unknown user, one that no password fits."""


@dataclass(frozen=True, slots=True)
class DelegatedCredential:
    """A delegation token's credential. A client that proves it knows the token's HMAC is ``owner`` (``User:alice``)
    until the token expires. ``until_ms``: milliseconds since 1970."""

    credential: StoredCredential
    owner: str
    until_ms: int


FindToken: TypeAlias = Callable[[str, ScramMechanism], DelegatedCredential]
"""Returns a credential by token id; for an unknown token, one that no password fits. Takes some milliseconds."""
TOKEN_AUTH: Final = "tokenauth"
"""The extension with which a client says that the user name is a token id (``ScramLoginModule``)."""


# --- Keys ---------------------------------------------------------------------------------------------


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Takes some milliseconds. Source: RFC 5802, Hi()."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode("utf-8"), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return what a server stores for a salted password."""
    stored = _stored_key(mechanism, _hmac(mechanism, salted, b"Client Key"))
    return ScramCredential(salt, stored, _hmac(mechanism, salted, b"Server Key"), iterations)


def is_password_of(mechanism: ScramMechanism, credential: StoredCredential, password: str) -> bool:
    """Return whether a credential was made from this password. Takes some milliseconds."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    made = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _stored_key(mechanism: ScramMechanism, client_key: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, client_key).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# --- Messages -----------------------------------------------------------------------------------------

_NONCE: Final = r"[!-+\--~]+"  # printable, no comma
_BASE64: Final = "[A-Za-z0-9+/]+={0,2}"
_MORE: Final = "(?:,[A-Za-z]+=[^,]*)*"
_CLIENT_FIRST: Final = re.compile(rf"((n|y|p=[^,]*),(?:a=([^,]*))?,)(n=([^,]+),r=({_NONCE})({_MORE}))", re.DOTALL)
_SERVER_FIRST: Final = re.compile(rf"r=({_NONCE}),s=({_BASE64}),i=([0-9]{{1,9}}){_MORE}")
_CLIENT_FINAL: Final = re.compile(rf"(c=({_BASE64}),r=({_NONCE}){_MORE}),p=({_BASE64})")
_SERVER_FINAL: Final = re.compile(rf"(?:v=({_BASE64})|e=([^,]*)){_MORE}")
_BAD_ESCAPE: Final = re.compile("=(?!2C|3D)")


def _name_in(text: str) -> str | None:
    """Decode a user name from a message; ``None`` if the encoding is invalid."""
    return None if _BAD_ESCAPE.search(text) else text.replace("=2C", ",").replace("=3D", "=")


def _says_token(extensions: str) -> bool:
    """Return whether a message's extensions say tokenauth, ignoring case as Kafka does."""
    return any(each.lower() == f"{TOKEN_AUTH}=true" for each in extensions.split(","))


def _spelt(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _text(token: bytes) -> str:
    """Decode a message; one that is not UTF-8 matches no pattern."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return ""


# --- The server's end ---------------------------------------------------------------------------------


class ScramServer:
    """One login: client-first, client-final, over. Implements :class:`tidelog.security.sasl.ServerMechanism`.

    An unknown user or token fails at the proof, just as a wrong password does. ``find_token``: ``None`` if delegation
    tokens are disabled.
    """

    def __init__(
        self, mechanism: ScramMechanism, find: FindCredential, nonce: str, find_token: FindToken | None = None
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._server_nonce = nonce
        self._until_ms: int | None = None
        self._token_id = ""
        self.tried = ""
        self._step: Callable[[bytes], Step] = self._first

    def step(self, token: bytes) -> Step:
        return self._step(token)

    def _first(self, token: bytes) -> Step:
        self._step = self._over
        match = _CLIENT_FIRST.fullmatch(_text(token))
        if match is None:
            return Rejected("expected SCRAM's client-first message, found something else")
        header, binding, authorized, bare, spelt, client_nonce, extensions = match.groups()
        name = _name_in(spelt)
        if name is None or binding.startswith("p"):
            return Rejected("expected a user's name, and no channel binding, in the client-first message")
        self.tried = name
        if authorized and _name_in(authorized) != name:
            return Rejected("expected no authorization id, or the user's own (CVE-2017-12610)", Cause.PRINCIPAL)
        self._name, self._header, self._bare = name, header.encode(), bare
        self._nonce = client_nonce + self._server_nonce
        if not _says_token(extensions):
            return self._challenge(self._find(name, self._mechanism))
        find = self._find_token
        if find is None:
            return Rejected("expected a user's name, found a delegation token: delegation.token.secret.key is not set")
        return Costly(lambda: self._challenge_token(name, find(name, self._mechanism)))

    def _challenge_token(self, token_id: str, found: DelegatedCredential) -> Challenge:
        self._name, self._until_ms, self._token_id = found.owner.partition(":")[2], found.until_ms, token_id
        return self._challenge(found.credential)

    def _challenge(self, credential: StoredCredential) -> Challenge:
        self._credential = credential
        answer = f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}"
        self._so_far = f"{self._bare},{answer},"
        self._step = self._final
        return Challenge(answer.encode("ascii"))

    def _final(self, token: bytes) -> Step:
        self._step = self._over
        match = _CLIENT_FINAL.fullmatch(_text(token))
        if match is None:
            return Rejected("expected SCRAM's client-final message, found something else")
        without_proof, binding, nonce, proof = match.groups()
        # Equal, not just ending with the server's part (CVE-2024-56128).
        if nonce != self._nonce or _decoded(binding) != self._header:
            return Rejected("expected the nonce and the channel binding of the earlier messages")
        mechanism, credential = self._mechanism, self._credential
        message = (self._so_far + without_proof).encode("utf-8")
        signature = _hmac(mechanism, credential.stored_key, message)
        shown = _decoded(proof)
        if len(shown) != len(signature):
            return Rejected("expected a proof as long as the mechanism's keys")
        if not hmac.compare_digest(_stored_key(mechanism, _xor(shown, signature)), credential.stored_key):
            return Rejected("wrong user or password", Cause.CREDENTIALS)
        verifier = _encoded(_hmac(mechanism, credential.server_key, message))
        return Accepted(self._name, f"v={verifier}".encode("ascii"), self._until_ms, self._token_id)

    def _over(self, _: bytes) -> Step:
        return Rejected("expected no message after the final one")


# --- The client's end ---------------------------------------------------------------------------------


class ScramClient:
    """One login. Implements :class:`tidelog.security.sasl.ClientMechanism`. ``by_token``: user and password are a
    delegation token's id and HMAC in base64."""

    def __init__(
        self, mechanism: ScramMechanism, username: str, password: str, nonce: str, *, by_token: bool = False
    ) -> None:
        self.name = mechanism.sasl_name
        self.done = False
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_spelt(username)},r={nonce}" + (f",{TOKEN_AUTH}=true" if by_token else "")
        self._step: Callable[[bytes], bytes | None] = self._final
        self._verifier = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        return self._step(challenge)

    def _final(self, challenge: bytes) -> bytes | None:
        match = _SERVER_FIRST.fullmatch(_text(challenge))
        if match is None:
            raise LoginRefused("expected SCRAM's server-first message, found something else")
        nonce, salt, iterations = match[1], _decoded(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginRefused("expected our nonce followed by the server's: the server may be an impostor")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise LoginRefused(
                f"expected {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} iterations, found {iterations}: the server may "
                "be trying to steal the password"
            )
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{_text(challenge)},{without_proof}".encode()
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        signature = _hmac(self._mechanism, _stored_key(self._mechanism, client_key), message)
        self._verifier = _hmac(self._mechanism, _hmac(self._mechanism, salted, b"Server Key"), message)
        self._step = self._verify
        return f"{without_proof},p={_encoded(_xor(client_key, signature))}".encode()

    def _verify(self, challenge: bytes) -> bytes | None:
        match = _SERVER_FINAL.fullmatch(_text(challenge))
        if match is None or not hmac.compare_digest(_decoded(match[1] or ""), self._verifier):
            raise LoginRefused("the server did not prove that it knows the password: it may be an impostor")
        self._step = self._over
        self.done = True
        return None

    def _over(self, _: bytes) -> bytes | None:
        raise LoginRefused("expected no message after the final one")
