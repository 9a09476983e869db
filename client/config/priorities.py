"""The setting ``priority_weights``: what poll prefers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.model.ids import TopicPartition
from tidelog.model.settings.config_def import ConfigError

WEIGHT_MAX: Final = 10_000

PriorityWeights = Mapping[str, int] | Mapping[TopicPartition, int] | Mapping[str | TopicPartition, int]
"""By topic, or by partition, which wins. What is not named has weight 1."""


def check_weights(weights: PriorityWeights | None) -> None:
    """Raises :class:`ConfigError`."""
    for of, weight in (weights or {}).items():
        if not isinstance(of, str | TopicPartition):
            raise ConfigError(f"priority_weights: expected names of topics or TopicPartition, found {of!r}")
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= WEIGHT_MAX:
            raise ConfigError(f"priority_weights: expected 1 to {WEIGHT_MAX} for {of}, found {weight!r}")


def weight_of(weights: PriorityWeights, at: TopicPartition) -> int:
    found = 1
    for of, weight in weights.items():
        if of == at:
            return weight
        if of == at.topic:
            found = weight
    return found
