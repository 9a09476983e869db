"""Every API that the listener serves through a handler, in one table.

Produce, Fetch and ApiVersions are not among them: the connection itself answers these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.broker.kafka.apis import Api


def table(*groups: Iterable[Api]) -> Mapping[int, Api]:
    """The APIs by their keys. Each key is there once."""
    found: dict[int, Api] = {}
    for group in groups:
        for api in group:
            assert api.key not in found, f"API {api.key} twice"
            found[api.key] = api
    return found
