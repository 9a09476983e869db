"""The images that each node acts by, and since when: what it decides is judged by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.node.node import Node
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NodeId


class InForce(NamedTuple):
    """The image that a node acts by, since when."""

    since_s: float
    image: MetadataImage


class ImagesInForce:
    """Of the nodes that somebody asked for, from then on."""

    def __init__(self, cluster: SimulatedCluster, now: Callable[[], float], *, controllers: bool = False) -> None:
        """``now``: the time in which questions are asked. ``controllers``: what the nodes' controllers act by, which
        may be ahead of their brokers."""
        self._controllers = controllers
        self._cluster = cluster
        self._now = now
        self._shown: dict[NodeId, tuple[Node, list[InForce]]] = {}

    def watched(self, node_id: NodeId) -> Node | None:
        """A node that runs, whose images are noted from now on; ``None`` if it does not run."""
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
        """Those in force since a time; empty if the node that was asked runs no more."""
        if self._cluster.nodes.get(node_id) is not node:
            return []
        shown = self._shown[node_id][1]
        first = max(number for number, one in enumerate(shown) if one.since_s <= began_s)
        return shown[first:]
