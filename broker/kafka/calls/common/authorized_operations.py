"""The caller's allowed operations in Kafka's form: bits by ``AclOperation`` number (KIP-430).

Without access control, everybody may do every operation that a resource supports (``AclEntry.supportedOperations``).
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.access.access import Access
from tidelog.model.errors import ErrorCode
from tidelog.security.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType


def operations_on(access: Access | None, resource_type: ResourceType, name: str) -> int:
    """Return the allowed operations on a resource."""
    if access is None:
        return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])
    return access.operations(resource_type, name)


def add_operations_on(access: Access | None, groups: list[dict[str, Any]]) -> None:
    """Add the allowed operations to the descriptions of groups."""
    for group in groups:
        if group["error_code"] is ErrorCode.NONE:
            group["authorized_operations"] = operations_on(access, ResourceType.GROUP, group["group_id"])


def operations_on_cluster(access: Access | None) -> int:
    """Return the allowed operations on the cluster; none if it may not be described (``KafkaApis``)."""
    if access is not None and not access.quiet.cluster(AclOperation.DESCRIBE):
        return 0
    return operations_on(access, ResourceType.CLUSTER, CLUSTER_NAME)
