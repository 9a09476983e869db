"""How a command finds its cluster."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.secured import client_file, default_directory
from tidelog.cli.terminal.output import json_option
from tidelog.cli.terminal.secret_files import names_secret, warn_of_readable_secret
from tidelog.client.config.profiles import BOOTSTRAP, PROFILE_ENV, load, with_password
from tidelog.client.config.security import JAAS, KAFKA_NAMES, STORE_TYPES, TEXTS
from tidelog.client.config.settings import parse_bootstrap
from tidelog.model.settings.config_def import ConfigError, unknown_setting
from tidelog.model.settings.listener_security import PEM
from tidelog.model.settings.properties import parse_properties

if TYPE_CHECKING:
    from tidelog import Admin

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
CONNECT_TIMEOUT_S: Final = 3.0
_SECURED: Final = "tidelog.secured"
_PROFILE: Final = "tidelog.profile"
_IN_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_BY_TOKEN: Final = re.compile(r'\btokenauth\s*=\s*"?true\b', re.IGNORECASE)


def default_bootstrap() -> str:
    """Return the address of the local cluster in its default directory, if there is one, else Kafka's port on this
    machine."""
    from tidelog.cli.local.cluster import LocalCluster  # brings the settings of nodes, 4 MB

    directory = default_directory()
    if not LocalCluster.exists(directory):
        return DEFAULT_BOOTSTRAP
    cluster = LocalCluster.open(directory)
    if all(node.mark is None for node in cluster.nodes.values()):
        raise CommandFailed(f"the local cluster in {directory} is stopped; `tidelog cluster start` starts it")
    # Our own listeners: nodes of release 0.1 refuse us at the Kafka listener.
    return ",".join(f"127.0.0.1:{node.ports.client}" for node in cluster.nodes.values())


def _given_before(context: click.Context, name: str) -> str | None:
    """Return an option given before the command (``tidelog --bootstrap HOST:PORT command``), unless the command runs by
    itself."""
    return context.find_root().params.get(name) if context.parent is not None else None


def _address(context: click.Context, said: str | None) -> str:
    """Return the address to connect to, and keep its profile for :func:`secured`.

    An address given without a profile's name belongs to another cluster, so the default profile's keys are not used.
    """
    named = context.meta.get(_PROFILE) or _given_before(context, "profile")
    if context.get_parameter_source("bootstrap") is not ParameterSource.COMMANDLINE:
        said = _given_before(context, "bootstrap") or (None if named else said)
    profile = {} if said and not (named or os.environ.get(PROFILE_ENV)) else with_password(load().find(named))
    address = profile.pop(BOOTSTRAP, None)
    if not (said or address) and (path := client_file(default_directory())) is not None:
        profile = {**read_command_config(path), **profile}
    context.meta.setdefault(_SECURED, profile)
    return said or address or default_bootstrap()


def require_listener(bootstrap: str) -> None:
    """Raise :class:`CommandFailed` if nothing listens at any of the addresses. Otherwise, the SDK would keep trying for
    a minute."""
    reasons = []
    for host, port in parse_bootstrap(bootstrap):
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as trouble:
            reasons.append(f"{host}:{port}: {trouble.strerror or trouble}")
    raise CommandFailed(
        f"no broker listens at {'; '.join(reasons)}. Is the cluster running? --bootstrap selects another"
    )


def bootstrap_option(command: F) -> F:
    """Give a command ``--bootstrap HOST:PORT,…``; the command runs only if something listens there."""

    def check(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        if context.resilient_parsing:  # completion must not connect
            return value
        address = _address(context, value)
        require_listener(address)
        return address

    addressed = click.option(
        "--bootstrap",
        "-b",
        callback=check,
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Some brokers. Default: $TIDELOG_BOOTSTRAP, the profile's, the local cluster's, or 127.0.0.1:9092.",
    )(command)
    return _with_settings(addressed)


def cluster_options(command: F) -> F:
    """Give a command ``--bootstrap`` and ``--json``."""
    return bootstrap_option(json_option(command))


def running_cluster_option(text: str) -> Callable[[F], F]:
    """Give a command an optional ``--bootstrap HOST:PORT,…``: only an address or profile named for this command counts.
    ``text``: the option's help."""

    def check(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        named = value or context.meta.get(_PROFILE) or _given_before(context, "bootstrap")
        return _address(context, value) if named or _given_before(context, "profile") else None

    def add(command: F) -> F:
        return _with_settings(
            click.option("--bootstrap", "-b", callback=check, metavar="HOST:PORT,...", help=text)(command)
        )

    return add


def _with_settings(command: F) -> F:
    """Give a command ``--profile`` and ``--command-config``."""
    profiled = click.option(
        "--profile",
        is_eager=True,
        expose_value=False,
        callback=_keep_profile,
        metavar="NAME",
        help="The profile to use (tidelog profile). Default: $TIDELOG_PROFILE, or the one in use.",
    )(command)
    return click.option(
        "--command-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        callback=_keep_command_config,
        expose_value=False,
        envvar="TIDELOG_COMMAND_CONFIG",
        metavar="FILE",
        help="How to connect: a .properties file with security.protocol, ssl.truststore.location and so on.",
    )(profiled)


def secured() -> dict[str, Any]:
    """Return the settings of ``--command-config`` or the profile, for each client that the command makes."""
    return dict(click.get_current_context().meta.get(_SECURED, {}))


def admin_client(bootstrap: str) -> Admin:
    """An admin client with these settings. The SDK is imported here, so that commands without a cluster start fast."""
    from tidelog import Admin

    return Admin(bootstrap, **secured())


def _keep_profile(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_PROFILE] = value


def _keep_command_config(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None and not context.resilient_parsing:
        context.meta[_SECURED] = read_command_config(value)


def read_command_config(path: Path) -> dict[str, str]:
    """Read client settings from a file in the format of Kafka's tools or librdkafka. Raises :class:`ConfigError`."""
    found: dict[str, str] = {}
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for name, (value, line) in properties.items():
        if name in STORE_TYPES and value.strip().upper() == PEM:
            continue
        if name == JAAS:  # as people paste it
            for key, said in _IN_JAAS.findall(value):
                found[f"sasl_{key}"] = re.sub(r"\\(.)", r"\1", said)
            if _BY_TOKEN.search(value):
                found["sasl_tokenauth"] = "true"
            continue
        ours = KAFKA_NAMES.get(name, name.replace(".", "_"))
        if ours not in TEXTS:
            known_names = [*TEXTS, *KAFKA_NAMES]
            wanted = "PEM" if name in STORE_TYPES else ""
            said = f"{name}: expected {wanted}, found {value!r}" if wanted else unknown_setting(name, known_names)
            raise ConfigError(f"{path}: line {line}: {said}")
        found[ours] = value
    if names_secret(found):
        warn_of_readable_secret(path)
    return found
