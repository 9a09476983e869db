"""Every API that the listener serves through a handler, in one table.

Produce, Fetch and ApiVersions are absent: the connection itself answers these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidelog.broker.client_metrics.telemetry import Telemetry
from tidelog.broker.kafka.calls.access import acls, delegation_tokens, quotas, sasl, users
from tidelog.broker.kafka.calls.cluster import cluster, features, metadata, telemetry
from tidelog.broker.kafka.calls.coordination import (
    consumer_groups,
    coordinators,
    group_admin,
    group_offsets,
    groups,
    transaction_admin,
    transactions,
)
from tidelog.broker.kafka.calls.topics import configs, offsets, reassignments, topics
from tidelog.broker.kafka.wire.apis import Api
from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.broker_config import NodeConfig


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an adapter knows of its node, besides the calls that come with each request."""

    config: NodeConfig
    view: MetadataView
    settings: Callable[[], Settings]
    """The dynamic and static settings in force."""
    telemetry: Telemetry
    """Metrics that clients push."""


def served(node: Surroundings) -> Mapping[int, Api]:
    """Return the APIs of this node by key."""
    return table(
        metadata.apis(node.view, node.config.node_id),
        cluster.apis(node.config, node.view),
        topics.apis(node.settings),
        configs.APIS,
        features.APIS,
        telemetry.apis(node.telemetry),
        acls.APIS,
        quotas.APIS,
        users.APIS,
        delegation_tokens.APIS,
        sasl.APIS,
        reassignments.APIS,
        offsets.apis(node.view),
        coordinators.APIS,
        groups.APIS,
        consumer_groups.APIS,
        group_offsets.apis(node.view),
        group_admin.APIS,
        transactions.APIS,
        transaction_admin.APIS,
    )


def table(*rooms: Iterable[Api]) -> Mapping[int, Api]:
    """Return the APIs by key. Each key occurs once."""
    found: dict[int, Api] = {}
    for room in rooms:
        for api in room:
            assert api.key not in found, f"API {api.key} twice"
            found[api.key] = api
    return found
