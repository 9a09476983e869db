"""Settings as data: names, types, defaults, bounds, documentation and parsing.

A configuration is a frozen dataclass with fields from :func:`boolean`, :func:`integer` and so on. A field's setting is
its name with dots for underscores (``retention_ms`` is ``retention.ms``), so each setting is written once. Source:
Kafka's ``ConfigDef`` and ``ConfigKey``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tidelog.model.classes.frozen import dataclass
from tidelog.model.secret import Secret

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
VALUE_LENGTH_MAX: Final = 32_767
"""Longest text of one value, in characters (Kafka's STRING on the wire)."""


class ConfigError(ValueError):
    """An invalid setting. The text names the setting, what was expected and what was found."""


class ValueType(enum.Enum):
    """Kafka's ``ConfigDef.Type``, as far as settings here use it."""

    BOOLEAN = "BOOLEAN"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    LIST = "LIST"
    PASSWORD = "PASSWORD"


class Update(enum.Enum):
    """When a broker's setting may change (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``minimum`` and ``maximum`` are inclusive; ``default`` ``None`` means unset; ``any_case``: choices,
    which are in lower case, are valid in any.

    ``read`` and ``write`` turn a structured value from and into text; without them the type does.
    """

    name: str
    value_type: ValueType
    default: object
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    any_case: bool = False
    update: Update = Update.READ_ONLY
    required: bool = False
    read: Callable[[str], Any] | None = None
    write: Callable[[Any], str] | None = None

    def parse(self, text: str) -> Any:
        """Return the value of ``text``. Raises :class:`ConfigError`."""
        if len(text) > VALUE_LENGTH_MAX:
            raise ConfigError(f"{self.name}: expected at most {VALUE_LENGTH_MAX} characters, found {len(text)}")
        text = text.strip()
        if self.read is not None:
            try:
                return self.read(text)
            except ValueError as error:
                raise ConfigError(f"{self.name}: {error}") from None
        match self.value_type:
            case ValueType.BOOLEAN:
                lowered = text.lower()
                if lowered not in ("true", "false"):
                    raise self._wrong("true or false", text)
                return lowered == "true"
            case ValueType.INT | ValueType.LONG:
                try:
                    whole = _decimal(text)
                except ValueError:
                    raise self._wrong(self.expectation(), text) from None
                return self._bounded(whole, text)
            case ValueType.DOUBLE:
                try:
                    number = float(text)
                except ValueError:
                    raise self._wrong(self.expectation(), text) from None
                if number != number:  # NaN compares with nothing, so no bound would catch it
                    raise self._wrong(self.expectation(), text)
                return self._bounded(number, text)
            case ValueType.LIST:
                items = split_list(text)
                for item in items:
                    if self.choices and item not in self.choices:
                        raise self._wrong(self.expectation(), item)
                if len(set(items)) != len(items):
                    raise self._wrong("no item twice", text)
                return items
            case ValueType.PASSWORD:
                return Secret(text)
            case ValueType.STRING:
                if self.choices and not text and self.default is None:
                    return None
                found = text.lower() if self.any_case else text
                if self.choices and found not in self.choices:
                    raise self._wrong(self.expectation(), text)
                return found

    def format(self, value: object) -> str | None:
        """Return ``value`` as text for :meth:`parse`; ``None`` for an unset value."""
        if value is None:
            return None
        if self.write is not None:
            return self.write(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(str(item) for item in value)
        return str(value)

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.value_type is ValueType.PASSWORD

    def expectation(self) -> str:
        """Describe the valid values in words."""
        if self.value_type is ValueType.BOOLEAN:
            return "true or false"
        if self.choices:
            some = " | ".join(self.choices)
            return f"a list of {some}" if self.value_type is ValueType.LIST else some
        if self.value_type in (ValueType.INT, ValueType.LONG, ValueType.DOUBLE):
            kind = "a number" if self.value_type is ValueType.DOUBLE else "a whole number"
            low, high = self._bounds()
            if high in (INT_MAX, LONG_MAX, float("inf")):
                return f"{kind} of at least {low}" if self.minimum is not None else kind
            return f"{kind} between {low} and {high}"
        return "text"

    def _bounds(self) -> tuple[float, float]:
        limit: float = {ValueType.INT: INT_MAX, ValueType.LONG: LONG_MAX}.get(self.value_type, float("inf"))
        low = -limit - 1 if self.minimum is None else self.minimum
        return low, limit if self.maximum is None else self.maximum

    def _bounded(self, value: Number, text: str) -> Number:
        low, high = self._bounds()
        if not low <= value <= high:
            raise self._wrong(self.expectation(), text)
        return value

    def _wrong(self, expected: str, found: str) -> ConfigError:
        return ConfigError(f"{self.name}: expected {expected}, found {_shortened(found)!r}")


Number = TypeVar("Number", int, float)


def _decimal(text: str) -> int:
    """Read a plain decimal integer, without Python's underscores, blanks or digits of other scripts."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise ValueError(text)
    return int(text)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def split_list(text: str) -> tuple[str, ...]:
    """Split at commas, without blanks around items; the empty text is the empty list."""
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


# --- Fields of a configuration ----------------------------------------------------------------------


def _field(value_type: ValueType, default: object, doc: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": (value_type, default, doc, more)})


def boolean(default: bool, doc: str, *, update: Update = Update.READ_ONLY) -> Any:
    return _field(ValueType.BOOLEAN, default, doc, update=update)


def integer(
    default: int | None,
    doc: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    update: Update = Update.READ_ONLY,
    required: bool = False,
) -> Any:
    """A 32-bit integer."""
    return _field(ValueType.INT, default, doc, minimum=at_least, maximum=at_most, update=update, required=required)


def long(
    default: int | None,
    doc: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    update: Update = Update.READ_ONLY,
) -> Any:
    """A 64-bit integer."""
    return _field(ValueType.LONG, default, doc, minimum=at_least, maximum=at_most, update=update)


def double(
    default: float,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    update: Update = Update.READ_ONLY,
) -> Any:
    return _field(ValueType.DOUBLE, default, doc, minimum=at_least, maximum=at_most, update=update)


def text(
    default: str | None,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    any_case: bool = False,
    update: Update = Update.READ_ONLY,
) -> Any:
    return _field(ValueType.STRING, default, doc, choices=choices, any_case=any_case, update=update)


def listing(
    default: tuple[str, ...],
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    update: Update = Update.READ_ONLY,
) -> Any:
    return _field(ValueType.LIST, default, doc, choices=choices, update=update)


def password(default: None, doc: str) -> Any:
    """Text that is never shown."""
    return _field(ValueType.PASSWORD, default, doc)


def structured(
    default: object,
    doc: str,
    *,
    read: Callable[[str], Any],
    write: Callable[[Any], str],
    value_type: ValueType = ValueType.LIST,
) -> Any:
    """A value with its own format. ``read`` raises ``ValueError`` with "expected …, found …"."""
    return _field(value_type, default, doc, read=read, write=write)


# --- A configuration's definition -------------------------------------------------------------------


class ConfigDef:
    """The settings of one configuration class, by name, in the order of its fields."""

    def __init__(self, owner: type[Any]) -> None:
        self.settings: Final[dict[str, Setting]] = {}
        self._field_of: Final[dict[str, str]] = {}
        for field in dataclasses.fields(owner):
            made = field.metadata.get("setting")
            if made is None:
                continue
            value_type, default, doc, more = made
            name = field.name.replace("_", ".")
            self.settings[name] = Setting(name, value_type, default, doc, **more)
            self._field_of[name] = field.name

    def field_name(self, name: str) -> str:
        """Return the dataclass field of the setting ``name``, which must be known."""
        return self._field_of[name]

    def require(self, name: str) -> Setting:
        """Return the setting ``name``. Raises :class:`ConfigError` that names the nearest known one."""
        found = self.settings.get(name)
        if found is None:
            raise ConfigError(unknown_setting(name, self.settings))
        return found

    def parse(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Read every value; the result's keys are field names. Raises :class:`ConfigError` at the first fault."""
        read = {name: self.require(name).parse(value) for name, value in values.items()}
        return {self._field_of[name]: value for name, value in read.items()}

    def describe(self, config: object) -> dict[str, str | None]:
        """Return every setting of ``config`` as text."""
        return {name: setting.format(getattr(config, self._field_of[name])) for name, setting in self.settings.items()}


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """Return an error that ``name`` is unknown, with the setting that was probably meant."""
    import difflib

    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown setting {_shortened(name)!r}{hint}"
