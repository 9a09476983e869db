"""DescribeAcls, CreateAcls and DeleteAcls, translated. Source: Kafka's ``AclApis``."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, outcome
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.acl_api import (
    AclEntry,
    AclEntryFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tidelog.security.acls import AclNumber, AclOperation, PatternType, PermissionType, ResourceType

_NUMBERS: Final[dict[str, type[AclNumber]]] = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission_type": PermissionType,
}


async def describe_acls(request: Any, _: int, context: KafkaContext) -> Answer:
    answer: DescribeAclsResponse = await context.call(DescribeAclsRequest(_filter(request)))
    resources: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in answer.entries:
        shown = _shown(entry)
        about = (entry.resource_type, entry.resource_name, entry.pattern_type)
        resources.setdefault(about, {**shown, "acls": []})["acls"].append(shown)
    return {**outcome(answer), "resources": list(resources.values())}


async def create_acls(request: Any, _: int, context: KafkaContext) -> Answer:
    entries = tuple(
        AclEntry(
            _name(ResourceType, each.resource_type),
            each.resource_name,
            _name(PatternType, each.resource_pattern_type),
            each.principal,
            each.host,
            _name(AclOperation, each.operation),
            _name(PermissionType, each.permission_type),
        )
        for each in request.creations
    )
    answer: CreateAclsResponse = await context.call(CreateAclsRequest(entries))
    return {"results": _results(answer, len(entries))}


async def delete_acls(request: Any, _: int, context: KafkaContext) -> Answer:
    filters = tuple(map(_filter, request.filters))
    answer: DeleteAclsResponse = await context.call(DeleteAclsRequest(filters))
    results = _results(answer, len(filters))
    for shown, deleted in zip(results, answer.results, strict=False):
        shown["matching_acls"] = list(map(_shown, deleted.entries))
    return {"filter_results": results}


def _results(answer: CreateAclsResponse | DeleteAclsResponse, count: int) -> list[dict[str, Any]]:
    """Return one result per item. Kafka's answers repeat for each item what ours say for the whole call."""
    if answer.error is not ErrorCode.NONE:
        return [outcome(answer) for _ in range(count)]
    return list(map(outcome, answer.results))


def _filter(said: Any) -> AclEntryFilter:
    return AclEntryFilter(
        _name(ResourceType, said.resource_type_filter),
        said.resource_name_filter,
        _name(PatternType, said.pattern_type_filter),
        said.principal_filter,
        said.host_filter,
        _name(AclOperation, said.operation),
        _name(PermissionType, said.permission_type),
    )


def _shown(entry: AclEntry) -> dict[str, Any]:
    fields = answered(entry, permission="permission_type")
    return fields | {name: of[fields[name].upper()] for name, of in _NUMBERS.items()}


def _name(of: type[AclNumber], number: int) -> str:
    """Return the name of a number, or the number itself if Kafka does not have it; it is refused later."""
    return of(number).name.lower() if number in of._value2member_map_ else str(number)


APIS: Final = (Api(29, 1, 3, describe_acls), Api(30, 1, 3, create_acls), Api(31, 1, 3, delete_acls))
