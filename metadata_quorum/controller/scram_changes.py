"""AlterUserScramCredentials: users that log in by password. Source: Kafka's ``ScramControlManager`` (KIP-554)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.calls.user_api import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from tidelog.proto.logs.metadata_records import (
    DecoySecretRecord,
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from tidelog.security.acls import WILDCARD
from tidelog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of

CHANGES_MAX: Final = 10_000
"""Most users that one request alters (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
CREDENTIALS_MAX: Final = 100_000
"""Most credentials in a cluster, one for each user and mechanism: each node keeps them in memory."""
SALT_BYTES_MAX: Final = 256
NAME_BYTES_MAX: Final = 1_024
SECRET_BYTES: Final = 32

Change = ScramDeletion | ScramUpsertion


def alter_users(
    image: MetadataImage, request: AlterUserScramCredentialsRequest, make_secret: Callable[[], bytes]
) -> Decision[AlterUserScramCredentialsResponse]:
    """Change or refuse each user individually. ``make_secret``: returns random bytes, called with the first user."""
    changes: tuple[Change, ...] = (*request.deletions, *request.upsertions)
    if len(changes) > CHANGES_MAX:
        text = f"expected at most {CHANGES_MAX} users in one request, found {len(changes)}"
        return Decision((), AlterUserScramCredentialsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
    faults: dict[str, Refusal | None] = {}
    credentials = len(image.users)
    for change in changes:
        if change.user in faults:
            faults[change.user] = _once_more(faults[change.user])
            continue
        faults[change.user] = _fault(image, change)
        if faults[change.user] is None and (change.user, change.mechanism) not in image.users:
            credentials += 1
            if credentials > CREDENTIALS_MAX:
                text = f"expected at most {CREDENTIALS_MAX} users' credentials in the cluster: delete some first"
                faults[change.user] = Refusal(ErrorCode.POLICY_VIOLATION, text)
    records = [_record_of(change) for change in changes if faults[change.user] is None]
    if request.upsertions and records and not image.decoy_secret:
        records.insert(0, DecoySecretRecord(make_secret()))
    return Decision(tuple(records), AlterUserScramCredentialsResponse(ErrorCode.NONE, tuple(_results(faults))))


def first_users(users: Sequence[ScramUpsertion], make_secret: Callable[[], bytes]) -> list[MetadataRecord]:
    """Return the records of a new cluster's first users. Raises :class:`ConfigError`."""
    for user in users:
        if (fault := _fault(MetadataImage(), user)) is not None:
            raise ConfigError(f"user {user.user!r}: {fault.message}")
    return [DecoySecretRecord(make_secret()), *map(_record_of, users)] if users else []


def _once_more(before: Refusal | None) -> Refusal:
    text = "A user credential cannot be altered twice in the same request"
    return before or Refusal(ErrorCode.DUPLICATE_RESOURCE, text)


def _fault(image: MetadataImage, change: Change) -> Refusal | None:
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not change.user:
        return Refusal(unacceptable, "Username must not be empty")
    if change.user == WILDCARD:
        return Refusal(unacceptable, f"{WILDCARD!r} stands for everybody in access control lists: name a user")
    if change.mechanism not in ScramMechanism.__members__.values():
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramDeletion):
        if (change.user, change.mechanism) not in image.users:
            text = "Attempt to delete a user credential that does not exist"
            return Refusal(ErrorCode.RESOURCE_NOT_FOUND, text)
        return None
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        few = "few" if change.iterations < ITERATIONS_MIN else "many"
        text = f"Too {few} iterations: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}, found {change.iterations}"
        return Refusal(unacceptable, text)
    if not 0 < len(change.salt) <= SALT_BYTES_MAX:
        return Refusal(unacceptable, f"expected a salt of 1 to {SALT_BYTES_MAX} bytes, found {len(change.salt)}")
    if len(change.user.encode()) > NAME_BYTES_MAX:
        return Refusal(unacceptable, f"expected a name of at most {NAME_BYTES_MAX} bytes, found more")
    wanted = ScramMechanism(change.mechanism).key_bytes
    if len(change.salted_password) != wanted:
        found = len(change.salted_password)
        return Refusal(unacceptable, f"expected a salted password of {wanted} bytes, found {found}")
    return None


def _record_of(change: Change) -> MetadataRecord:
    if isinstance(change, ScramDeletion):
        return RemoveUserScramCredentialRecord(change.user, change.mechanism)
    made = credential_of(ScramMechanism(change.mechanism), change.salted_password, change.salt, change.iterations)
    return UserScramCredentialRecord(
        change.user, change.mechanism, made.salt, made.stored_key, made.server_key, made.iterations
    )


def _results(faults: dict[str, Refusal | None]) -> Iterator[AlteredUser]:
    for user, fault in faults.items():
        yield AlteredUser(user, ErrorCode.NONE) if fault is None else AlteredUser(user, fault.code, fault.message)
