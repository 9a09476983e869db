"""Admin client calls for client quotas, under the names of Kafka's ``Admin`` (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.admin.base import AdminBase, Result, all_or_raise
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.proto.calls.quota_api import (
    DEFAULT,
    EXACT,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaChange,
    QuotaFilter,
    client_entity,
    wire_entity,
)


class QuotaAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for quotas."""

    async def describe_client_quotas(
        self, wanted: ClientQuotaEntity | None = None, *, strict: bool = False, timeout: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """Return the quotas of every entity that has what ``wanted`` names (and, with ``strict``, nothing else).

        Raises ``InvalidRequestError``, ``ClusterAuthorizationFailedError``.
        """
        components = tuple(
            QuotaFilter(part.entity_type, DEFAULT if part.entity_name is None else EXACT, part.entity_name)
            for part in wire_entity(wanted or ClientQuotaEntity())
        )

        def outcome(answer: DescribeClientQuotasResponse) -> tuple[Result]:
            return (answer,)

        answer = await self._ask(DescribeClientQuotasRequest(components, strict), outcome, timeout)
        all_or_raise((answer,), lambda _: "client quotas")
        return {
            client_entity(found.entity): {each.key: each.value for each in found.values} for found in answer.entries
        }

    async def alter_client_quotas(
        self,
        changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set quotas, or remove those whose value is ``None``; others are unchanged.

        Raises ``InvalidRequestError``, ``ClusterAuthorizationFailedError``.
        """
        entries = tuple(
            QuotaAlteration(
                wire_entity(entity),
                tuple(QuotaChange(key, None if value is None else float(value)) for key, value in values.items()),
            )
            for entity, values in changes.items()
        )
        answer = await self._ask(AlterClientQuotasRequest(entries, validate_only), lambda r: r.entries, timeout)
        all_or_raise(answer.entries, lambda found: str(client_entity(found.entity)) or "quotas")
