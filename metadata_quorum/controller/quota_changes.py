"""AlterClientQuotas: changes to the quotas of users, client ids and addresses.

Source: Kafka's ``ClientQuotaControlManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.client_quotas import ENTITY_TYPES, IP, entity_fault, value_fault
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.quota_api import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    QuotaAlteration,
    QuotaEntity,
)
from tidelog.proto.logs.metadata_records import ClientQuotaRecord, MetadataRecord

CHANGES_MAX: Final = 10_000
"""Most quotas that one request changes (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
ENTITIES_MAX: Final = 100_000
"""Most entities with quotas: each change copies a path to one of them, and each broker keeps them in memory."""


def alter_client_quotas(image: MetadataImage, request: AlterClientQuotasRequest) -> Decision[AlterClientQuotasResponse]:
    """Change each entity completely, or refuse it individually."""
    asked = sum(len(entry.changes) for entry in request.entries)
    if asked > CHANGES_MAX:
        text = f"expected at most {CHANGES_MAX} quotas in one request, found {asked}"
        return Decision((), _refused(request, text))
    named = [canonical(entry.entity) for entry in request.entries]
    times = Counter(named)
    records: list[MetadataRecord] = []
    results: list[AlteredQuotas] = []
    entities = len(image.quotas)
    for entry, entity in zip(request.entries, named, strict=True):
        fault: str | None = "expected each entity once in a request, found it twice"
        if times[entity] == 1:
            fault = _entry_fault(entity, entry)
        present = image.quota(entity)
        if fault is None and not present and any(change.value is not None for change in entry.changes):
            entities += 1
            if entities > ENTITIES_MAX:
                fault = f"expected at most {ENTITIES_MAX} entities with quotas: delete some, or use defaults"
        if fault is not None:
            results.append(AlteredQuotas(entry.entity, ErrorCode.INVALID_REQUEST, fault))
            continue
        records += [
            ClientQuotaRecord(entity, change.key, change.value)
            for change in entry.changes
            if present.get(change.key) != change.value
        ]
        results.append(AlteredQuotas(entry.entity, ErrorCode.NONE))
    return Decision(() if request.validate_only else tuple(records), AlterClientQuotasResponse(tuple(results)))


def canonical(entity: Sequence[QuotaEntity]) -> tuple[QuotaEntity, ...]:
    """Return an entity's canonical form: user before client id, addresses as sockets write them."""

    def spelt(part: QuotaEntity) -> QuotaEntity:
        if part.entity_type != IP or part.entity_name is None:
            return part
        return QuotaEntity(IP, plain_address(part.entity_name))

    order = {entity_type: number for number, entity_type in enumerate(ENTITY_TYPES)}
    return tuple(sorted(map(spelt, entity), key=lambda part: order.get(part.entity_type, len(order))))


def _entry_fault(entity: Sequence[QuotaEntity], entry: QuotaAlteration) -> str | None:
    fault = entity_fault([(part.entity_type, part.entity_name) for part in entity])
    if fault is not None:
        return fault
    types = [part.entity_type for part in entity]
    touched: set[str] = set()
    for change in entry.changes:
        if change.key in touched:
            return f"expected each quota once, found {change.key} twice"
        touched.add(change.key)
        if change.value is not None and (fault := value_fault(types, change.key, change.value)) is not None:
            return fault
    return None


def _refused(request: AlterClientQuotasRequest, text: str) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        tuple(AlteredQuotas(entry.entity, ErrorCode.INVALID_REQUEST, text) for entry in request.entries)
    )
