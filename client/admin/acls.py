"""Admin client calls for access control lists, under the names of Kafka's ``Admin`` (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.admin.base import AdminBase, Result, all_or_raise, raise_first
from tidelog.client.errors import exception_for
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.calls.acl_api import (
    AclEntry,
    CreateAclsRequest,
    CreatedAcl,
    DeleteAclsRequest,
    DescribeAclsRequest,
    binding_of,
    entry_of,
    filter_entry_of,
)
from tidelog.security.acls import AclBinding, AclFilter


class AclAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for access control."""

    async def create_acls(self, acls: Iterable[AclBinding], *, timeout: float | None = None) -> None:
        """Create entries that allow or deny operations. Existing entries are unchanged.

        Raises ``SecurityDisabledError`` (the cluster has no authorizer), ``InvalidRequestError`` (an invalid entry; the
        others are created), ``ClusterAuthorizationFailedError``.
        """
        wanted = list(acls)
        request = CreateAclsRequest(tuple(map(entry_of, wanted)))
        answer = await self._ask(request, lambda r: (_whole(r.error, r.error_message),), timeout)
        all_or_raise((_whole(answer.error, answer.error_message),), lambda _: "access control lists")
        failed = {
            str(acl): exception_for(result.error, f"{acl}: {result.error_message}")
            for acl, result in zip(wanted, answer.results, strict=True)
            if result.error is not ErrorCode.NONE
        }
        if failed:
            raise_first(failed)

    async def describe_acls(self, wanted: AclFilter | None = None, *, timeout: float | None = None) -> list[AclBinding]:
        """Return the entries that match a filter; without one, all. Raises ``SecurityDisabledError``,
        ``ClusterAuthorizationFailedError``."""
        request = DescribeAclsRequest(filter_entry_of(wanted or AclFilter()))
        answer = await self._ask(request, lambda r: (r,), timeout)
        all_or_raise((answer,), lambda _: "access control lists")
        return _bindings(answer.entries)

    async def delete_acls(self, filters: Iterable[AclFilter], *, timeout: float | None = None) -> list[AclBinding]:
        """Delete and return every entry that matches one of the filters. Raises ``SecurityDisabledError``,
        ``ClusterAuthorizationFailedError``."""
        request = DeleteAclsRequest(tuple(map(filter_entry_of, filters)))
        answer = await self._ask(request, lambda r: (_whole(r.error, r.error_message), *r.results), timeout)
        all_or_raise((_whole(answer.error, answer.error_message), *answer.results), lambda _: "access control lists")
        return _bindings(dict.fromkeys(entry for result in answer.results for entry in result.entries))


def _whole(error: ErrorCode, text: str) -> Result:
    """Return the outcome of a whole call as one more item."""
    return CreatedAcl(error, text)


def _bindings(entries: Iterable[AclEntry]) -> list[AclBinding]:
    found = []
    for entry in entries:
        acl = binding_of(entry)
        if isinstance(acl, Refusal):
            raise exception_for(acl.code, f"the broker's answer has a value that is unknown here: {acl.message}")
        found.append(acl)
    return sorted(found, key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type, str(acl)))
