"""The caller's allowed operations in Kafka's form: bits by ``AclOperation`` number (KIP-430).

Without access control, everybody may do every operation that a resource supports (``AclEntry.supportedOperations``).
"""

from __future__ import annotations

from tidelog.broker.access.access import Access
from tidelog.security.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType


def operations_on(access: Access | None, resource_type: ResourceType, name: str) -> int:
    """Return the allowed operations on a resource."""
    if access is None:
        return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])
    return access.operations(resource_type, name)


def operations_on_cluster(access: Access | None) -> int:
    """Return the allowed operations on the cluster; none if it may not be described (``KafkaApis``)."""
    if access is not None and not access.quiet.cluster(AclOperation.DESCRIBE):
        return 0
    return operations_on(access, ResourceType.CLUSTER, CLUSTER_NAME)
