"""Kafka's requests and answers group partitions by topic, our calls list them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeVar

from tidelog.broker.kafka.calls.common.translation import answered


class AtPartition(Protocol):
    """An item about one partition, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


AtT = TypeVar("AtT", bound=AtPartition)


def by_topic(
    items: Iterable[AtT],
    fields: Callable[[AtT], Mapping[str, Any]] = answered,
    *,
    topics: Iterable[str] = (),
    topic: str = "name",
    partitions: str = "partitions",
    partition: str = "partition_index",
) -> list[dict[str, Any]]:
    """Group items by topic, in order of first appearance: first those of ``topics``, which appear even without a
    partition. The names are those of the answer's fields."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in topics}
    for item in items:
        found.setdefault(item.topic, []).append({partition: item.partition, **fields(item)})
    return [{topic: name, partitions: inside} for name, inside in found.items()]
