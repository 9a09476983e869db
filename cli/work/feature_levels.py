"""Feature levels across the nodes of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.model.features import MEANINGS
from tidelog.proto.calls.controller_api import range_of

if TYPE_CHECKING:
    from tidelog.client.admin.types import FeatureMetadata


def feature_rows(found: FeatureMetadata) -> list[dict[str, Any]]:
    """Return each known feature: its level, what all nodes support, and the nodes that lag behind."""
    names = {*found.supported_features, *found.finalized_features, *(f.name for n in found.nodes for f in n.features)}
    rows = []
    for name in sorted(names):
        ranges = [(f"{node.role} {node.node_id}", *range_of(name, node.features)) for node in found.nodes]
        ranges = ranges or [("", *found.supported_features.get(name, (0, 0)))]
        level, known = found.finalized_features.get(name, 0), max(high for _, _, high in ranges)
        rows.append(
            {
                "feature": name, "level": level,
                "min": max(low for _, low, _ in ranges), "max": min(high for _, _, high in ranges), "known_max": known,
                "behind": [who for who, _, high in ranges if high < known], "meaning": MEANINGS.get((name, level), ""),
            }
        )  # fmt: skip
    return rows
