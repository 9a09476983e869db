"""Named clusters, each with how a client reaches it, in one private file of the user; as ``rpk profile`` has them.

The file is ``$XDG_CONFIG_HOME/tidelog/profiles.toml``, by default ``~/.config/tidelog/profiles.toml``::

    default = "staging"

    [profiles.staging]
    bootstrap_servers = "10.0.0.1:9092,10.0.0.2:9092"
    security_protocol = "SSL"
    ssl_cafile = "keys/ca.pem"

A path that is not absolute starts at the file's folder. Nobody but its owner may read the file.

``sasl_password_command`` names a program instead of a password, such as a password manager's. It is run without a shell
whenever the profile is used; the first line that it prints is the password.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.client.config.security import TEXTS
from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.settings.config_def import ConfigError, unknown_setting

PROFILE_ENV: Final = "TIDELOG_PROFILE"
BOOTSTRAP: Final = "bootstrap_servers"
PASSWORD: Final = "sasl_password"
PASSWORD_COMMAND: Final = "sasl_password_command"
COMMAND_TIMEOUT_S: Final = 60.0
"""For the program, which may ask its user."""
SETTINGS: Final = (BOOTSTRAP, PASSWORD_COMMAND, *TEXTS)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Profiles:
    """The content of the file: each profile's settings as text, by name, and the default profile."""

    default: str | None = None
    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def find(self, name: str | None) -> dict[str, str]:
        """A profile's settings. Without a name: those of ``$TIDELOG_PROFILE`` or of the default, else none.

        Raises :class:`ConfigError` if there is no such profile.
        """
        wanted = name or os.environ.get(PROFILE_ENV) or self.default
        if wanted is None:
            return {}
        if wanted not in self.named:
            known = ", ".join(sorted(self.named)) or "none"
            raise ConfigError(f"expected a profile in {location()} ({known}), found {wanted!r}")
        return dict(self.named[wanted])


def profile(name: str | None = None) -> dict[str, Any]:
    """Return the settings of a profile, as keyword arguments for any client:
    ``Producer(**tidelog.profile("staging"))``.

    Without a name: those of ``$TIDELOG_PROFILE``, else of the file's default, else none. Raises
    :class:`~tidelog.errors.ConfigError` if there is no such profile, or the file is wrong or may be read by others.
    """
    return with_password(load().find(name))


def with_password(settings: dict[str, str]) -> dict[str, str]:
    """The same settings; the password in the place of the program that tells it. Raises :class:`ConfigError`."""
    found = dict(settings)
    if (command := found.pop(PASSWORD_COMMAND, None)) is not None:
        found[PASSWORD] = password_of(command)
    return found


def password_of(command: str) -> str:
    """The first line that a program prints. Raises :class:`ConfigError`, which has nothing of what it printed."""
    try:
        words = shlex.split(command)
        ran = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=COMMAND_TIMEOUT_S)
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise ConfigError(f"{PASSWORD_COMMAND}: {command!r} cannot be run: {reason}") from None
    if ran.returncode:
        raise ConfigError(f"{PASSWORD_COMMAND}: {command!r} ended with code {ran.returncode}")
    first = ran.stdout.partition(b"\n")[0].removesuffix(b"\r")
    try:
        password = first.decode()
    except UnicodeDecodeError:
        password = ""
    if not password:
        raise ConfigError(f"{PASSWORD_COMMAND}: expected {command!r} to print a password in its first line")
    return password


def location() -> Path:
    """Return the path of the user's profiles."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "tidelog" / "profiles.toml"


def load() -> Profiles:
    """Load the user's profiles; empty if there is no file. Raises :class:`ConfigError`."""
    path = location()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read().decode()
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from None
    if mode & 0o077:
        raise ConfigError(f"{path}: expected mode 0600, found {mode:04o}; run: chmod 600 {path}")
    try:
        return parse(text, path.parent)
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str, folder: Path) -> Profiles:
    """Parse profiles; relative paths start at ``folder``."""
    given = tomllib.loads(text)
    for name in given:
        if name not in ("default", "profiles"):
            raise ConfigError(unknown_setting(name, ["default", "profiles"]))
    tables = _table("profiles", given.get("profiles", {}))
    named = {name: _checked(name, _table(name, table), folder) for name, table in tables.items()}
    default = given.get("default")
    if default is not None and default not in named:
        raise ConfigError(f"default: expected a profile ({', '.join(sorted(named)) or 'none'}), found {default!r}")
    return Profiles(default, named)


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid profile name. Raises :class:`ConfigError`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"expected 1 to 64 letters, digits, - and _ as a profile's name, found {name!r}")
    return name


def _table(name: str, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: expected a table, found {found!r}")
    return found


def _checked(name: str, table: Mapping[str, object], folder: Path) -> dict[str, str]:
    check_name(name)
    found: dict[str, str] = {}
    for setting, value in table.items():
        if setting not in SETTINGS:
            raise ConfigError(f"profile {name}: {unknown_setting(setting, SETTINGS)}")
        if not isinstance(value, str):
            raise ConfigError(f"profile {name}: {setting}: expected a string, found {value!r}")
        found[setting] = os.path.join(folder, value) if setting.endswith("file") else value
    if PASSWORD in found and PASSWORD_COMMAND in found:
        raise ConfigError(f"profile {name}: expected {PASSWORD} or {PASSWORD_COMMAND}, found both")
    if BOOTSTRAP not in found:
        raise ConfigError(f"profile {name}: expected {BOOTSTRAP}, found {', '.join(found) or 'no settings'}")
    parse_bootstrap(found[BOOTSTRAP])
    return found


def format_profiles(profiles: Profiles) -> str:
    """Return the file's text; :func:`parse` of it returns ``profiles`` again, if their paths are absolute."""
    lines = [] if profiles.default is None else [f"default = {_quoted(profiles.default)}"]
    for name, settings in sorted(profiles.named.items()):
        lines += ["", f"[profiles.{check_name(name)}]"]
        lines += [f"{setting} = {_quoted(value)}" for setting, value in settings.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """Quote a string for TOML, which has all escapes of JSON and requires one more character to be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
