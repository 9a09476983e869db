"""Every call: its request and answer types, found from the classes themselves.

A request names its answer as the type argument of :class:`~tidelog.proto.calls.request.Request`. To add a call, write
the two classes in one of :data:`CALL_MODULES` and run ``./dev generate``: :mod:`tidelog.proto.contracts` writes the
message and the method of the gRPC service from them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, get_args

from tidelog.proto.calls import (
    acl_api,
    api,
    audit_api,
    backup_api,
    connection_api,
    consumer_group_api,
    controller_api,
    delegation_token_api,
    group_api,
    quota_api,
    reassignment_api,
    sink_api,
    transaction_api,
    user_api,
)
from tidelog.proto.calls.request import Request, Response

CALL_MODULES: Final = (
    api,
    reassignment_api,
    group_api,
    consumer_group_api,
    transaction_api,
    sink_api,
    acl_api,
    quota_api,
    user_api,
    delegation_token_api,
    backup_api,
    controller_api,
    audit_api,
    connection_api,
)
"""In the order in which the gRPC service lists their calls."""


def _calls_of(module: ModuleType) -> dict[type[Request[Any]], type[Response]]:
    found = {}
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, Request) and cls.__module__ == module.__name__:
            (base,) = cls.__orig_bases__  # type: ignore[attr-defined]
            (answer,) = get_args(base)
            found[cls] = vars(module)[answer.__forward_arg__]
    return found


CALLS: Final[dict[type[Request[Any]], type[Response]]] = {
    request: answer for module in CALL_MODULES for request, answer in _calls_of(module).items()
}
"""Request type → answer type. A call's name on the wire is the request's class name without ``Request``."""
