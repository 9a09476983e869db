"""Schemas of a schema registry. Source: Confluent's API, which Karapace, Apicurio and Redpanda serve too.

A record of the wire format begins with a 0 and the schema's number in four bytes.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tidelog.console.schemas.avro import AvroSchema
from tidelog.console.schemas.structured import SchemaWrong, Undecodable, of_json
from tidelog.security.issuer import IssuerError, check_url, fetch

MAGIC: Final = b"\x00"
HEAD_BYTES: Final = 5
KEPT_MAX: Final = 500
REFERENCES_MAX: Final = 50
FAILED_S: Final = 30.0
"""How long a number that could not be looked up is not asked for again."""
AWAY_S: Final = 5.0
"""How long a registry that did not answer is not asked at all."""


class JsonSchema:
    """Records of JSON Schema are JSON as they are."""

    kind: Final = "json"
    name: Final = ""

    def decode(self, data: bytes) -> Any:
        return of_json(data)


@dataclass(frozen=True, slots=True)
class Decoded:
    """``value``: as JSON has it."""

    kind: str
    schema: str
    value: object


class Registry:
    """Looks schemas up and keeps them; they never change. Blocks; may be called from any thread. ``url`` as
    :func:`tidelog.security.issuer.check_url` takes it. ``clock``: seconds."""

    def __init__(self, url: str, authorization: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.url: Final = check_url(url).rstrip("/")
        self._authorization = authorization
        self._clock = clock
        self._kept: dict[int, Any] = {}
        self._failed: dict[int, tuple[float, str]] = {}
        self._away: tuple[float, str] | None = None
        self._asking = threading.Lock()

    def decode(self, data: bytes) -> Decoded:
        """A record of the wire format. Raises :class:`Undecodable`."""
        number = int.from_bytes(data[1:HEAD_BYTES], "big")
        schema = self._schema(number)
        if schema.kind == "protobuf":
            name, value = schema.decode_framed(data[HEAD_BYTES:])
        else:
            name, value = schema.name, schema.decode(data[HEAD_BYTES:])
        return Decoded(schema.kind, " ".join(filter(None, (f"#{number}", name))), value)

    def _schema(self, number: int) -> Any:
        with self._asking:
            if number in self._kept:
                return self._kept[number]
            now = self._clock()
            if self._away is not None and now < self._away[0]:
                raise Undecodable(self._away[1])
            if number in self._failed and now < self._failed[number][0]:
                raise SchemaWrong(self._failed[number][1])
            try:
                found = self._look_up(number)
            except SchemaWrong as wrong:
                self._failed[number] = (self._clock() + FAILED_S, str(wrong))
                _forget_oldest(self._failed)
                raise
            except IssuerError as error:
                if "HTTP 404" in str(error):
                    self._failed[number] = (self._clock() + FAILED_S, f"the registry has no schema {number}")
                    _forget_oldest(self._failed)
                    raise SchemaWrong(self._failed[number][1]) from None
                self._away = (self._clock() + AWAY_S, f"the schema registry does not answer: {error}")
                raise Undecodable(self._away[1]) from None
            self._kept[number] = found
            _forget_oldest(self._kept)
            return found

    def _look_up(self, number: int) -> Any:
        found = self._ask(f"/schemas/ids/{number}")
        kind = found.get("schemaType", "AVRO")
        if kind == "AVRO":
            return AvroSchema(_text(found), [_text(one) for one in self._references(found, "")])
        if kind == "PROTOBUF":
            from tidelog.console.schemas.protobuf import ProtobufSchema  # 2 MB, which few consoles need

            form = "?format=serialized"
            files = [_serialized(one) for one in self._references(found, form)]
            return ProtobufSchema([*files, _serialized(self._ask(f"/schemas/ids/{number}{form}"))])
        if kind == "JSON":
            return JsonSchema()
        raise SchemaWrong(f"schema {number}: expected AVRO, PROTOBUF or JSON, found {str(kind)[:40]!r}")

    def _references(self, schema: dict[str, Any], form: str) -> list[dict[str, Any]]:
        """What a schema names, each before its users."""
        found: dict[tuple[str, int], dict[str, Any]] = {}

        def follow(one: dict[str, Any], above: frozenset[tuple[str, int]]) -> None:
            for each in one.get("references") or []:
                at = (str(each["subject"]), int(each["version"]))
                if at in found or at in above:
                    continue
                if len(found) + len(above) >= REFERENCES_MAX:
                    raise SchemaWrong(f"expected at most {REFERENCES_MAX} references, found more")
                path = f"/subjects/{quote(at[0], safe='')}/versions/{at[1]}"
                follow(self._ask(path), above | {at})
                found[at] = self._ask(path + form)

        try:
            follow(schema, frozenset())
        except (KeyError, TypeError, ValueError):
            raise SchemaWrong("expected references with subject and version") from None
        return list(found.values())

    def _ask(self, path: str) -> dict[str, Any]:
        found = of_json(fetch(self.url + path, authorization=self._authorization))
        if not isinstance(found, dict):
            raise SchemaWrong(f"{path}: expected a JSON object")
        return found


def _text(found: dict[str, Any]) -> str:
    if not isinstance(text := found.get("schema"), str):
        raise SchemaWrong("expected a schema in the registry's answer")
    return text


def _serialized(found: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(_text(found), validate=True)
    except binascii.Error:
        raise SchemaWrong("the registry does not serve format=serialized, which Protobuf needs") from None


def _forget_oldest(kept: dict[int, Any]) -> None:
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
