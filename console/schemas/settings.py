"""The file that says how messages are read: schemas by topic, a schema registry, what is hidden from whom.

::

    [registry]
    url = "https://schemas.example:8081"
    user = "reader"
    password_file = "schemas.password"

    [topics."orders"]
    key = "messagepack"
    value = { avro = "order.avsc" }

    [topics."payments.*"]
    value = { protobuf = "payments.desc", message = "shop.Payment" }

    [[hidden]]
    topics = ["payments.*"]
    value = ["$.card.number", "$..email"]
    headers = ["authorization"]
    except_for = ["alice"]

A topic may be a pattern with ``*`` and ``?``. Paths of files start at the folder of this one.
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path as File
from typing import Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.console.schemas.avro import AvroSchema
from tidelog.console.schemas.masks import Path, PathWrong
from tidelog.console.schemas.messagepack import MessagePack
from tidelog.console.schemas.registry import HEAD_BYTES, MAGIC, Decoded, JsonSchema, Registry
from tidelog.console.schemas.structured import Undecodable
from tidelog.console.schemas.view import KEY, VALUE, Decode, Mask, View

SIDES: Final = (KEY, VALUE)


@dataclass(frozen=True, slots=True)
class Hidden:
    """``except_for``: users that see everything. Where nobody logs in, there are none."""

    topics: tuple[str, ...]
    mask: Mask
    except_for: frozenset[str]


class Messages:
    """What the file says; without one, nothing."""

    def __init__(
        self,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        hidden: tuple[Hidden, ...] = (),
        registry: Registry | None = None,
    ) -> None:
        self._topics = topics or {}
        self._hidden = hidden
        self._registry = registry

    def view(self, topic: str, user: str | None) -> View:
        """How ``user`` sees the records of a topic."""
        mask = Mask()
        for one in self._hidden:
            if user not in one.except_for and any(fnmatchcase(topic, pattern) for pattern in one.topics):
                mask = mask.and_also(one.mask)
        decoders = {side: decode for side in SIDES if (decode := self._decoder(topic, side)) is not None}
        return View(decoders, mask)

    def _decoder(self, topic: str, side: str) -> Decode | None:
        rules = [self._topics[topic]] if topic in self._topics else []
        rules += [rule for pattern, rule in self._topics.items() if fnmatchcase(topic, pattern)]
        schema = next((rule[side] for rule in rules if side in rule), None)
        if schema is not None:
            return lambda data: Decoded(schema.kind, schema.name, schema.decode(data))
        registry = self._registry
        if registry is None:
            return None
        return lambda data: registry.decode(data) if data[:1] == MAGIC and len(data) >= HEAD_BYTES else None


def load(path: File | None, registry_url: str | None = None) -> Messages:
    """Read the file. ``registry_url`` takes the place of the file's. Raises :class:`CommandFailed`."""
    try:
        found = {} if path is None else tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: expected a TOML file: {error}") from None
    where = path.parent if path is not None else File()
    reader = _Reader(str(path), where)
    _known(reader, "the file", found, ("registry", "topics", "hidden"))
    topics = {name: reader.topic(name, rule) for name, rule in reader.table("topics", found.get("topics", {})).items()}
    if not isinstance(hidden := found.get("hidden", []), list):
        raise reader.wrong("hidden", "tables, as [[hidden]]", hidden)
    registry = reader.table("registry", found.get("registry", {}))
    if registry_url is not None:
        registry = {**registry, "url": registry_url}
    return Messages(
        topics, tuple(reader.hidden(one) for one in hidden), reader.registry(registry) if registry else None
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    folder: File

    def wrong(self, what: str, expected: str, found: object) -> CommandFailed:
        return CommandFailed(f"{self.name}: {what}: expected {expected}, found {str(found)[:120]!r}")

    def table(self, what: str, found: object) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self.wrong(what, "a table", found)
        return found

    def text(self, what: str, found: object) -> str:
        if not isinstance(found, str) or not found:
            raise self.wrong(what, "a text", found)
        return found

    def texts(self, what: str, found: object) -> list[str]:
        if not isinstance(found, list):
            raise self.wrong(what, "a list of texts", found)
        return [self.text(what, one) for one in found]

    def read(self, what: str, name: object) -> bytes:
        try:
            return (self.folder / self.text(what, name)).read_bytes()
        except OSError as error:
            raise CommandFailed(f"{self.name}: {what}: {name}: {error.strerror}") from None

    def topic(self, name: str, rule: Any) -> dict[str, Any]:
        what = f"topics.{name}"
        _known(self, what, self.table(what, rule), SIDES)
        return {side: self.schema(f"{what}.{side}", given) for side, given in rule.items()}

    def schema(self, what: str, given: object) -> Any:
        make: Callable[[bytes], Any]
        match given:
            case "messagepack":
                return MessagePack()
            case "json":
                return JsonSchema()
            case {"avro": name, **rest} if not rest:
                make = lambda data: AvroSchema(data.decode("utf-8", "replace"))  # noqa: E731
            case {"protobuf": name, "message": message, **rest} if not rest:
                from tidelog.console.schemas.protobuf import ProtobufSchema

                kind = self.text(f"{what}.message", message)
                make = lambda data: ProtobufSchema.of_set(data, kind)  # noqa: E731
            case _:
                raise self.wrong(
                    what, '"json", "messagepack", { avro = FILE } or { protobuf = FILE, message = NAME }', given
                )
        try:
            return make(self.read(what, name))
        except Undecodable as error:
            raise CommandFailed(f"{self.name}: {what}: {name}: {error}") from None

    def hidden(self, rule: Any) -> Hidden:
        _known(self, "hidden", self.table("hidden", rule), ("topics", *SIDES, "headers", "except_for"))
        topics = self.texts("hidden.topics", rule.get("topics"))
        try:
            key, value = (
                tuple(Path.of(one) for one in self.texts(f"hidden.{side}", rule.get(side, []))) for side in SIDES
            )
        except PathWrong as error:
            raise CommandFailed(f"{self.name}: hidden: {error}") from None
        mask = Mask(key, value, frozenset(self.texts("hidden.headers", rule.get("headers", []))))
        if not topics or not mask:
            raise self.wrong("hidden", "topics, and what is hidden: key, value or headers", rule)
        return Hidden(tuple(topics), mask, frozenset(self.texts("hidden.except_for", rule.get("except_for", []))))

    def registry(self, rule: dict[str, Any]) -> Registry:
        _known(self, "registry", rule, ("url", "user", "password_file"))
        authorization = None
        if "user" in rule or "password_file" in rule:
            user = self.text("registry.user", rule.get("user"))
            password = self.read("registry.password_file", rule.get("password_file")).strip()
            authorization = "Basic " + base64.b64encode(user.encode() + b":" + password).decode()
        try:
            return Registry(self.text("registry.url", rule.get("url")), authorization)
        except ValueError as error:
            raise CommandFailed(f"schema registry: {error}") from None


def _known(reader: _Reader, what: str, found: Mapping[str, Any], names: tuple[str, ...]) -> None:
    if unknown := sorted(found.keys() - set(names)):
        raise reader.wrong(what, f"only {', '.join(names)}", unknown[0])
