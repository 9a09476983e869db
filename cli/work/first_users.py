"""``--add-scram``: the initial users of a new cluster. Source: Kafka's ``ScramParser`` (KIP-900)."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidelog.metadata_quorum.controller.scram_changes import SECRET_BYTES, first_users
from tidelog.model.settings.config_def import ConfigError
from tidelog.proto.calls.user_api import ScramUpsertion
from tidelog.proto.logs.metadata_records import MetadataRecord
from tidelog.security.scram import BY_SASL_NAME, ITERATIONS_MAX, ITERATIONS_MIN, salted_password

OPTION: Final = "--add-scram"
SALT_BYTES: Final = 32
_WHOLE: Final = re.compile(r"\s*([A-Za-z0-9-]+)\s*=\s*\[(.*)\]\s*", re.DOTALL)
_PART: Final = re.compile(r'\s*([a-z]+)\s*=\s*(?:"([^"]*)"|([^,"\]]*))\s*(?:,|$)')
_NAMES: Final = ("name", "password", "iterations", "salt", "saltedpassword")
_FORM: Final = "SCRAM-SHA-512=[name=USER,password=PASSWORD]"


def parse_first_users(given: Iterable[str]) -> tuple[MetadataRecord, ...]:
    """Return the records of the users in ``--add-scram``; ``@FILE`` stands for the file's lines. Raises
    :class:`ConfigError`, which contains no password, and ``OSError``."""
    said: list[str] = []
    for text in given:
        if text.startswith("@"):
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
            said += [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        else:
            said.append(text)
    users = [_user(number, text) for number, text in enumerate(said, 1)]
    return tuple(first_users(users, lambda: secrets.token_bytes(SECRET_BYTES)))


def _user(number: int, text: str) -> ScramUpsertion:
    which = f"{OPTION}, user {number}"
    whole = _WHOLE.fullmatch(text)
    mechanism = None if whole is None else BY_SASL_NAME.get(whole[1])
    if whole is None or mechanism is None:
        raise ConfigError(f"{which}: expected {_FORM}, found another form, or an unknown mechanism")
    parts = _parts(which, whole[2])
    iterations = parts.get("iterations", str(ITERATIONS_MIN))
    if not iterations.isascii() or not iterations.isdecimal() or len(iterations) > 9:
        raise ConfigError(f"{which}: iterations: expected a whole number, found another text")
    count = int(iterations)
    if ("password" in parts) == ("saltedpassword" in parts):
        raise ConfigError(f"{which}: expected a password or a saltedpassword")
    if "saltedpassword" in parts:
        if "salt" not in parts:
            raise ConfigError(f"{which}: expected the salt of the saltedpassword, found none")
        salt, salted = _decoded(which, "salt", parts), _decoded(which, "saltedpassword", parts)
    else:
        salt = _decoded(which, "salt", parts) if "salt" in parts else secrets.token_bytes(SALT_BYTES)
        bounded = min(max(count, ITERATIONS_MIN), ITERATIONS_MAX)  # beyond, it is refused
        salted = salted_password(mechanism, parts["password"], salt, bounded)
    return ScramUpsertion(parts.get("name", ""), mechanism, count, salt, salted)


def _parts(which: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[1] not in _NAMES or part[1] in found:
            raise ConfigError(f"{which}: expected {', '.join(_NAMES)}, each at most once, found something else")
        found[part[1]] = part[2] if part[2] is not None else part[3].strip()
        at = part.end()
    return found


def _decoded(which: str, name: str, parts: dict[str, str]) -> bytes:
    try:
        return base64.b64decode(parts[name], validate=True)
    except binascii.Error:
        raise ConfigError(f"{which}: {name}: expected base64, found something else") from None
