"""The features with cluster-wide levels (KIP-584), and the levels that this version knows.

A record or behaviour that older nodes do not understand gets a level here, and nothing uses it below that level. All
gates are in :mod:`tidelog.proto.logs.record_levels`.
"""

from __future__ import annotations

from typing import Final

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {
    METADATA_VERSION: (1, 2),
    TRANSACTION_VERSION: (0, 2),
    GROUP_VERSION: (0, 1),
}
"""Feature → lowest and highest level. A feature of level 0 is off; a cluster does not mention it."""

MEANINGS: Final[dict[tuple[str, int], str]] = {
    (METADATA_VERSION, 1): "the records of release 0.1, and its formats of the quorum's files and streams",
    (METADATA_VERSION, 2): "users with passwords, delegation tokens, controllers' registrations; directories vote",
    (TRANSACTION_VERSION, 1): "as 0; in Kafka, another form of the coordinator's records",
    (TRANSACTION_VERSION, 2): "Kafka's clients use the second transaction protocol (KIP-890)",
    (GROUP_VERSION, 1): "groups of the consumer protocol (KIP-848)",
}
"""The effect of each level above 0, for display."""

UPGRADE: Final = "upgrade"
SAFE_DOWNGRADE: Final = "safe downgrade"
UNSAFE_DOWNGRADE: Final = "unsafe downgrade"
UPGRADE_TYPES: Final = (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)
"""The kinds of level change, by Kafka's numbers 1 to 3 (``FeatureUpdate.UpgradeType``)."""
