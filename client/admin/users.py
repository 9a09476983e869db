"""Admin client calls for users with passwords, under the names of Kafka's ``Admin`` (KIP-554)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.admin.base import AdminBase, all_or_raise
from tidelog.proto.calls.user_api import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from tidelog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, salted_password

SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """The public part of a credential. ``iterations``: 4096 to 16384."""

    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = ITERATIONS_MIN


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """Sets a user's password for one mechanism. ``salt``: random by default."""

    user: str
    password: str = field(repr=False)
    info: ScramCredentialInfo = ScramCredentialInfo()
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """Removes a user's password for one mechanism."""

    user: str
    mechanism: ScramMechanism


class UserAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for users."""

    async def describe_user_scram_credentials(
        self, users: Iterable[str] = (), *, timeout: float | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """Return the credentials of these users, or of all. Raises ``ResourceNotFoundError``,
        ``DuplicateResourceError``, ``ClusterAuthorizationFailedError``."""
        request = DescribeUserScramCredentialsRequest(tuple(users))
        answer = await self._ask(request, lambda r: (_whole(r), *r.users), timeout)
        all_or_raise((_whole(answer), *map(_outcome, answer.users)), lambda each: each.user)
        return {
            found.user: [
                ScramCredentialInfo(ScramMechanism(each.mechanism), each.iterations) for each in found.credentials
            ]
            for found in answer.users
        }

    async def alter_user_scram_credentials(
        self,
        alterations: Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion],
        *,
        timeout: float | None = None,
    ) -> None:
        """Set and delete credentials, at most one per user. The password itself stays here: only a salted one is sent
        to the cluster.

        Raises ``ResourceNotFoundError``, ``DuplicateResourceError``, ``UnacceptableCredentialError``,
        ``PolicyViolationError`` (the connection is not encrypted), ``ClusterAuthorizationFailedError``.
        """
        wanted = list(alterations)
        deletions = tuple(
            ScramDeletion(each.user, each.mechanism) for each in wanted if isinstance(each, UserScramCredentialDeletion)
        )
        upsertions = [each for each in wanted if isinstance(each, UserScramCredentialUpsertion)]
        made = await asyncio.to_thread(lambda: tuple(map(salted, upsertions)))
        request = AlterUserScramCredentialsRequest(deletions, made)
        answer = await self._ask(request, lambda r: (_whole(r), *r.results), timeout)
        all_or_raise((_whole(answer), *answer.results), lambda each: each.user)


def _whole(answer: DescribeUserScramCredentialsResponse | AlterUserScramCredentialsResponse) -> AlteredUser:
    """Return the outcome of a whole call as that of one more user."""
    return AlteredUser("users", answer.error, answer.error_message)


def _outcome(found: DescribedUser) -> AlteredUser:
    return AlteredUser(found.user, found.error, found.error_message)


def salted(wanted: UserScramCredentialUpsertion) -> ScramUpsertion:
    """Return what is sent instead of the password. Takes some milliseconds."""
    mechanism, iterations = wanted.info.mechanism, wanted.info.iterations
    salt = wanted.salt or secrets.token_bytes(SALT_BYTES)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:  # the cluster would refuse it, so do not compute a million
        return ScramUpsertion(wanted.user, mechanism, iterations, salt, bytes(mechanism.key_bytes))
    made = salted_password(mechanism, wanted.password, salt, iterations)
    return ScramUpsertion(wanted.user, mechanism, iterations, salt, made)
