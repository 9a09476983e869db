"""What ``help()`` and ``repr()`` show of a client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.model.settings.config_def import ConfigDef

T = TypeVar("T")


def describes(settings: ConfigDef) -> Callable[[type[T]], type[T]]:
    """Decorate a client's class: ``help()`` lists its settings, each with default and meaning, and leaves out the
    arguments that are only for the project's own tests."""

    def describe(client: type[T]) -> type[T]:
        made: Any = client.__init__
        signature = inspect.signature(made)
        public = [one for one in signature.parameters.values() if not one.name.startswith("_")]
        made.__signature__ = signature.replace(parameters=public)
        lines = [
            f"{setting.name.replace('.', '_')} = {setting.default!r}\n    {setting.doc}"
            for setting in settings.settings.values()
        ]
        made.__doc__ = (
            '``bootstrap_servers``: some brokers, as "host:port,host:port" or a list. Settings:\n\n' + "\n".join(lines)
        )
        return client

    return describe


def shown(name: str, servers: str, closed: bool, *details: str) -> str:
    """A client's ``repr``: its public name, its cluster's address, its distinguishing details, its state."""
    return f"<{', '.join([f'tidelog.{name} {servers}', *filter(None, details), 'closed' if closed else 'open'])}>"
