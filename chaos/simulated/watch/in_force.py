"""The images that each node acts on, and since when: its decisions are judged by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NodeId


class InForce(NamedTuple):
    """The image that a node acts on, since when."""

    since_s: float
    image: MetadataImage


class ImagesInForce:
    """The images of the nodes that were asked for, from the first question on."""

    def __init__(self, cluster: SimulatedCluster, now: Callable[[], float], *, controllers: bool = False) -> None:
        """``now``: the time base of the questions. ``controllers``: the images of the nodes' controllers, which may be
        ahead of their brokers."""
        self._controllers = controllers
        self._cluster = cluster
        self._now = now
        self._shown: dict[NodeId, tuple[Node, list[InForce]]] = {}

    def watched(self, node_id: NodeId) -> Node | None:
        """Return a running node and record its images from now on; ``None`` if it is down."""
        node = self._cluster.nodes.get(node_id)
        if node is None or not node.view.opened:
            return None
        if node_id not in self._shown or self._shown[node_id][0] is not node:
            controller = node.controller if self._controllers else None
            shown = [InForce(self._now(), node.view.image if controller is None else controller.image)]
            self._shown[node_id] = node, shown

            def note(image: MetadataImage, _: MetadataDelta) -> None:
                shown.append(InForce(self._now(), image))

            def hear(image: MetadataImage, delta: MetadataDelta) -> tuple[()]:
                note(image, delta)
                return ()

            if controller is None:
                node.view.subscribe(hear)
            else:
                controller.subscribe(note)
        return node

    def since(self, node_id: NodeId, node: Node, began_s: float) -> list[InForce]:
        """Return the images in force since a time; empty if the node is down by now."""
        if self._cluster.nodes.get(node_id) is not node:
            return []
        shown = self._shown[node_id][1]
        first = max(number for number, one in enumerate(shown) if one.since_s <= began_s)
        return shown[first:]
