"""Calls for users with passwords: their SCRAM credentials (KIP-554).

Conventions as in :mod:`tidelog.proto.calls.api`. ``mechanism`` is Kafka's number, as in
:class:`tidelog.security.scram.ScramMechanism`.
"""

from __future__ import annotations

from dataclasses import field

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Change, Request, Response


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """No users: all of them."""

    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedCredential:
    """The public part of a credential."""

    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True)
class DescribedUser:
    user: str
    error: ErrorCode
    credentials: tuple[DescribedCredential, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsResponse(Response):
    """One result for each user, in the order of the request. ``error`` is that of the whole call."""

    error: ErrorCode
    users: tuple[DescribedUser, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """The password is never sent, but ``salted_password`` is equally powerful."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsRequest(Change["AlterUserScramCredentialsResponse"]):
    """Each user at most once."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()

    @property
    def users(self) -> tuple[str, ...]:
        """Every user once."""
        gone, made = (each.user for each in self.deletions), (each.user for each in self.upsertions)
        return tuple(dict.fromkeys((*gone, *made)))


@dataclass(frozen=True, slots=True)
class AlteredUser:
    user: str
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsResponse(Response):
    """One result for each user in the request, in its order. ``error`` is that of the whole call."""

    error: ErrorCode
    results: tuple[AlteredUser, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """The next message of a login (KIP-152). Kafka's SaslHandshake is not needed: ``mechanism`` is here.

    ``exchange`` is empty at first, then the value of the previous answer. Over gRPC it is sent in the metadata of its
    call, as ``tidelog-login-bin``, and the call's own message is not read.
    """

    mechanism: str
    exchange: bytes = field(default=b"", repr=False)
    auth_bytes: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse(Response):
    """A challenge; or ``session_token``, to be sent with every later call and stream to this node."""

    error: ErrorCode
    auth_bytes: bytes = field(default=b"", repr=False)
    exchange: bytes = field(default=b"", repr=False)
    session_token: str = field(default="", repr=False)
    session_lifetime_ms: int = 0
    error_message: str = ""
