"""How one person sees the records of one topic: decoded, and with what is not for them hidden.

Whatever leaves the console of a record's content passes here: rows, and what a search may look into. Otherwise a search
for a hidden value would tell whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.console.schemas.masks import HIDDEN, Path, hide
from tidelog.console.schemas.registry import Decoded
from tidelog.console.schemas.structured import BYTES_MAX, Undecodable, as_json_text, of_json
from tidelog.proto.records.decoder import Record

KEY, VALUE = "key", "value"
Decode = Callable[[bytes], Decoded | None]
"""``None``: nothing is known of these bytes. Raises :class:`Undecodable`."""


class Searched(NamedTuple):
    """What a search may look into."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Mask:
    """What is hidden of a topic's records. ``headers``: names, ``*`` for all."""

    key: tuple[Path, ...] = ()
    value: tuple[Path, ...] = ()
    headers: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.key or self.value or self.headers)

    def hides_header(self, name: str) -> bool:
        return name in self.headers or "*" in self.headers

    def and_also(self, other: Mask) -> Mask:
        return Mask(self.key + other.key, self.value + other.value, self.headers | other.headers)


class Shown(NamedTuple):
    """Bytes as this person may see them. ``data``: those to show, ``None`` if they are hidden. ``text``: what a schema
    or a mask made of them. ``why``: why there is no such text."""

    data: bytes | None
    text: str | None = None
    kind: str = ""
    schema: str = ""
    why: str = ""
    masked: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """``decoders``: by side, :data:`KEY` and :data:`VALUE`."""

    decoders: dict[str, Decode]
    mask: Mask = Mask()

    def shown(self, side: str, data: bytes) -> Shown:
        """A key or a value."""
        decoded, why = self._decoded(side, data)
        paths = self.mask.key if side == KEY else self.mask.value
        if not paths:
            if decoded is None:
                return Shown(data, why=why)
            return Shown(data, as_json_text(decoded.value), decoded.kind, decoded.schema)
        if any(not path.steps for path in paths):
            return Shown(None, HIDDEN, masked=True)
        if decoded is None and not why:
            try:
                decoded = Decoded("json", "", _small(data, of_json))
            except Undecodable as error:
                why = str(error)
        if decoded is None:
            return Shown(
                None, HIDDEN, why=f"Fields of it are not for you, and it could not be read: {why}", masked=True
            )
        return Shown(None, as_json_text(hide(decoded.value, paths)), decoded.kind, decoded.schema, masked=True)

    def header(self, name: str, data: bytes) -> Shown:
        return Shown(None, HIDDEN, masked=True) if self.mask.hides_header(name) else Shown(data)

    def searched(self, record: Record) -> Record | Searched:
        """What a search may look into: of hidden fields, nothing."""
        mask = self.mask
        if not mask:
            return record
        return Searched(
            record.timestamp,
            self._seen(KEY, record.key) if mask.key else record.key,
            self._seen(VALUE, record.value) if mask.value else record.value,
            [(name, HIDDEN.encode() if mask.hides_header(name) else data) for name, data in record.headers],
        )

    def _seen(self, side: str, data: bytes | None) -> bytes | None:
        return None if data is None else (self.shown(side, data).text or "").encode("utf-8", "surrogatepass")

    def _decoded(self, side: str, data: bytes) -> tuple[Decoded | None, str]:
        decode = self.decoders.get(side)
        if decode is None or (side == KEY and not data):
            return None, ""
        try:
            return _small(data, decode), ""
        except Undecodable as error:
            return None, str(error)


def _small(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    if len(data) > BYTES_MAX:
        raise Undecodable(f"expected at most {BYTES_MAX:,} bytes, found {len(data):,}")
    return decode(data)


PLAIN: Final = View({})
"""Records as they are."""
