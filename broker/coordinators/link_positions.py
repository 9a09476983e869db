"""How far links into this cluster are, as the coordinators of their groups know."""

from __future__ import annotations

from tidelog.broker.health.facts import Link, LinkPartition
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.metadata_quorum.image.image import TOPIC, MetadataImage
from tidelog.model.ids import TopicPartition
from tidelog.model.link_position import GROUP_PREFIX, read_position

LINK_NAME = "link.name"


def links_known(coordinator: GroupCoordinator, image: MetadataImage, now_ms: int) -> list[Link]:
    """The links whose groups this node coordinates, with the partitions that they still fill: what was promoted counts
    no more. Visits every group."""
    found = []
    for group, offsets in coordinator.committed(GROUP_PREFIX):
        name = group.removeprefix(GROUP_PREFIX)
        places = tuple(
            LinkPartition(
                TopicPartition(topic, partition),
                one.lag,
                one.lag_ms(now_ms),
                max(0, now_ms - one.told_ms),
                one.reason,
            )
            for topic, partition, value in offsets
            if image.config(TOPIC, topic).get(LINK_NAME) == name
            and (one := read_position(value.offset, value.leader_epoch, value.metadata)) is not None
        )
        if places:
            found.append(Link(name, places))
    return found
