"""Converts clients' keyword arguments (or strings) to a checked, frozen configuration.

A setting has Kafka's name, with underscores for dots. Values may be typed or, as in a properties file,
text. Each field holds its setting's definition (type, default, bounds, documentation);
:mod:`tidelog.model.settings.config_def` does the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from tidelog.client.config.security import OTHER_SPELLINGS
from tidelog.model.secret import Secret
from tidelog.model.settings.config_def import ConfigDef, ConfigError, Setting, ValueType, unknown_setting
from tidelog.proto.transport.network import Address

DEFAULT_PORT: Final = 9092

C = TypeVar("C")

_PYTHON_TYPES: Final[dict[ValueType, tuple[type, ...]]] = {
    ValueType.BOOLEAN: (bool,),
    ValueType.INT: (int,),
    ValueType.LONG: (int,),
    ValueType.DOUBLE: (float, int),
    ValueType.STRING: (str,),
    ValueType.LIST: (tuple, list),
    ValueType.PASSWORD: (str,),
}


def build(config: type[C], definition: ConfigDef, values: Mapping[str, Any]) -> C:
    """Return ``config(**values)`` with every value checked against the definition.

    Raises :class:`ConfigError` for an unknown name (naming the nearest known one), a wrong type or a value out of
    bounds. A field without a setting (a serializer, an interceptor) is passed through. For security settings, the names
    of Kafka's Java clients and of librdkafka also work.
    """
    fields = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    checked: dict[str, Any] = {}
    for given, value in values.items():
        spelt = given.replace(".", "_")
        name = OTHER_SPELLINGS.get(spelt, spelt)
        if name not in fields:
            raise ConfigError(unknown_setting(given, sorted(fields)))
        if name in checked:
            raise ConfigError(f"{given}: expected one name for it, found {name} too, which is the same setting")
        setting = definition.settings.get(name.replace("_", "."))
        checked[name] = value if setting is None else _check(name, setting, value)
    return config(**checked)


def _check(name: str, setting: Setting, value: object) -> Any:
    expected = _PYTHON_TYPES[setting.value_type]
    named = dataclasses.replace(setting, name=name)
    if isinstance(value, str):  # leading and trailing blanks are part of a password
        return Secret(value) if setting.value_type is ValueType.PASSWORD else named.parse(value)
    if value is None and setting.default is None:
        return None
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        raise ConfigError(f"{name}: expected {setting.expectation()}, found {value!r}")
    text = setting.format(tuple(value) if isinstance(value, list) else value)
    return named.parse(text) if text is not None else None


def parse_bootstrap(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Read ``"host:port,host:port"`` or a list of these; the default port is 9092.

    IPv6 addresses need brackets. Raises :class:`ConfigError`.
    """
    items = servers.split(",") if isinstance(servers, str) else list(servers)
    found = tuple(_address(item.strip()) for item in items if item.strip())
    if not found:
        raise ConfigError(f"bootstrap_servers: expected host:port, separated by commas, found {servers!r}")
    return found


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"bootstrap_servers: expected host:port with a port of 1 to 65535, found {text!r}")
    if ":" in host and not text.startswith("["):
        raise ConfigError(f"bootstrap_servers: expected an IPv6 address in brackets, found {text!r}")
    return Address(host, int(port))
