"""Controllers register the feature levels that they know, even those that are not brokers."""

from __future__ import annotations

from tidelog.metadata_quorum.controller.features import supported_features
from tidelog.testing.cluster import Cluster


def test_every_controller_says_which_levels_it_knows_and_a_new_leader_knows_it() -> None:
    with Cluster(3) as cluster:

        def registered() -> bool:
            images = [cluster.node(number).view.image for number in (1, 2, 3)]
            return all(set(image.controllers) == {1, 2, 3} for image in images)

        cluster.wait_for(registered, "all controllers are registered")
        found = cluster.node(2).view.image.controllers
        assert {record.features for record in found.values()} == {supported_features()}
        cluster.kill(cluster.wait_for_controller())
        leader = cluster.wait_for_controller()
        assert set(cluster.node(leader).view.image.controllers) == {1, 2, 3}
