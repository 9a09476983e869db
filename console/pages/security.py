"""Users with passwords, access control lists and quotas: show and change them as the person."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tidelog import (
    AclBinding,
    AclFilter,
    ClientQuotaEntity,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.cli.work.acl_entries import as_object, read_entries
from tidelog.client.errors import TidelogError
from tidelog.console.pages.paging import page_of
from tidelog.console.routes import Call, Route, text_of
from tidelog.console.web.messages import Wrong
from tidelog.model.errors import ErrorCode


def users(call: Call) -> dict[str, Any]:
    found = call.desk.admin.describe_user_scram_credentials()
    return {
        "users": [
            {"name": name, "mechanisms": [[one.mechanism.sasl_name, one.iterations] for one in infos]}
            for name, infos in sorted(found.items())
        ]
    }


def _mechanism(call: Call) -> ScramMechanism:
    name = text_of(call.body(), "mechanism", "SCRAM-SHA-512")
    for one in ScramMechanism:
        if one.sasl_name == name:
            return one
    raise Wrong(f"mechanism: expected {', '.join(one.sasl_name for one in ScramMechanism)}, found {name[:40]!r}")


def set_password(call: Call) -> dict[str, Any]:
    """Create a user, or change a user's password. Only the salted password leaves this process."""
    password = text_of(call.body(), "password")
    if not password:
        raise Wrong("password: expected a password, found none")
    info = ScramCredentialInfo(_mechanism(call))
    call.desk.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(call.names["user"], password, info)])
    return {}


def delete_user(call: Call) -> dict[str, Any]:
    """Remove one of a user's passwords."""
    call.desk.admin.alter_user_scram_credentials([UserScramCredentialDeletion(call.names["user"], _mechanism(call))])
    return {}


def acls(call: Call) -> dict[str, Any]:
    try:
        found = call.desk.admin.describe_acls()
    except TidelogError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        return {"off": True}
    keys: dict[str, Callable[[AclBinding], Any]] = {
        "principal": lambda one: (one.principal, one.resource_type, one.resource_name, str(one)),
        "resource": lambda one: (one.resource_type, one.resource_name, one.principal, str(one)),
    }
    shown, about = page_of(call, found, str, keys)
    return {**about, "acls": [as_object(one) for one in shown]}


def _entry(call: Call) -> AclBinding:
    (found,) = read_entries(json.dumps([call.body()]), "the entry")
    return found


def add_acl(call: Call) -> dict[str, Any]:
    call.desk.admin.create_acls([_entry(call)])
    return {}


def remove_acl(call: Call) -> dict[str, Any]:
    one = _entry(call)
    exact = AclFilter(
        one.resource_type, one.resource_name, one.pattern_type, one.principal, one.host, one.operation, one.permission
    )
    return {"removed": len(call.desk.admin.delete_acls([exact]))}


def quotas(call: Call) -> dict[str, Any]:
    found = call.desk.admin.describe_client_quotas()
    rows = [
        {"user": entity.user, "client": entity.client_id, "ip": entity.ip, "name": str(entity), "values": dict(values)}
        for entity, values in found.items()
    ]
    return {"quotas": sorted(rows, key=lambda row: row["name"])}


def change_quota(call: Call) -> dict[str, Any]:
    """Set quotas of an entity; null removes one. An empty name means the default for all others."""
    body = call.body()
    names = [body.get(part) for part in ("user", "client", "ip")]
    values = body.get("values")
    if not all(name is None or isinstance(name, str) for name in names):
        raise Wrong("user, client, ip: expected strings or null")
    if not isinstance(values, dict) or not values or not all(_is_value(value) for value in values.values()):
        raise Wrong("values: expected an object that maps quota names to numbers or null")
    call.desk.admin.alter_client_quotas({ClientQuotaEntity(*names): values})
    return {}


def _is_value(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


ROUTES: Final = (
    Route("GET", "/api/users", users),
    Route("POST", "/api/users/{user}/password", set_password),
    Route("POST", "/api/users/{user}/delete", delete_user, typed="user"),
    Route("GET", "/api/acls", acls),
    Route("POST", "/api/acls", add_acl),
    Route("POST", "/api/acls/remove", remove_acl),
    Route("GET", "/api/quotas", quotas),
    Route("POST", "/api/quotas", change_quota),
)
