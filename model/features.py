"""The features whose levels a cluster agrees on (KIP-584), and the levels this version knows."""

from __future__ import annotations

from typing import Final

METADATA_VERSION: Final = "metadata.version"

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {METADATA_VERSION: (1, 1)}
"""Feature → lowest and highest level."""
