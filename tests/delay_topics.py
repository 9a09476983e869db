"""A delay topic with its targets, for tests that write to one."""

from __future__ import annotations

from tidelog.testing import Cluster


def create_delay_topic(cluster: Cluster, later: str, dead: str, *, partitions: int = 1, **targets: str) -> None:
    """``targets``: ``delay_target`` or ``delay_targets``; they are created too, and so are the dead letters."""
    for name in (*",".join(targets.values()).split(","), dead):
        cluster.create_topic(name, config={"delay.sources": later})
    cluster.create_topic(
        later,
        partitions=partitions,
        config={
            "delay.enable": "true",
            "delay.dead.letter.topic": dead,
            "message.timestamp.type": "LogAppendTime",
            **{name.replace("_", "."): value for name, value in targets.items()},
        },
    )
