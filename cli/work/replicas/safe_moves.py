"""Checks moves before they start, and refuses plans that could not finish or would leave too few replicas in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas.moving import names_of
from tidelog.cli.work.replicas.placement import Overview
from tidelog.cli.work.replicas.spreading import Assignment, NoRoom, drained, resized
from tidelog.model.ids import TopicPartition
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.calls.api import ConfigResource

if TYPE_CHECKING:
    from tidelog import Admin

MIN_ISR: Final = "min.insync.replicas"


def drain_plan(admin: Admin, found: Overview, gone: Collection[int], *, dead: bool) -> Assignment:
    """Plan where the replicas on ``gone`` go. Raises :class:`CommandFailed`."""
    check_brokers(found, gone, dead=dead)
    try:
        wanted = drained(found.parts(), found.targets, gone)
    except NoRoom as none:
        raise CommandFailed(
            f"{none}: add a broker first, or give the topic fewer replicas (tidelog topics alter NAME --replicas N)"
        ) from None
    check_in_sync(found, wanted, _min_isr(admin, {at.topic for at in wanted}))
    return wanted


def resize_plan(admin: Admin, found: Overview, topic: str, replication_factor: int) -> Assignment:
    """Plan the replicas of a topic with another replication factor. Raises :class:`CommandFailed`."""
    min_isr = _min_isr(admin, [topic])
    if replication_factor < min_isr[topic]:
        raise CommandFailed(
            f"{topic}: expected at least as many replicas as {MIN_ISR}, {min_isr[topic]}, found {replication_factor}: "
            f"first lower that (tidelog configs alter --topic {topic} --set {MIN_ISR}={replication_factor})"
        )
    try:
        wanted = resized(found.parts(), found.targets, topic, replication_factor)
    except NoRoom as none:
        raise CommandFailed(f"{none}: add a broker first, or start those that are down") from None
    check_in_sync(found, wanted, min_isr)
    return wanted


def check_brokers(found: Overview, gone: Collection[int], *, dead: bool) -> None:
    live = found.live
    held = {node for placed in found.placed.values() for node in placed.replicas}
    if unknown := sorted(set(gone) - found.brokers.keys() - held):
        raise CommandFailed(f"expected brokers among {sorted(found.brokers)}, found {_listed(unknown)}")
    down = sorted(held.intersection(gone) - live)
    if down and not dead:
        raise CommandFailed(
            f"expected a live broker, found {_listed(down)}, which is down: start it, so that partitions keep all "
            "their replicas while the new ones catch up; or use --dead if it will never come back"
        )
    if dead and (up := sorted(live.intersection(gone))):
        raise CommandFailed(
            f"--dead: expected brokers that are down, found {_listed(up)}, which is live: leave out --dead"
        )


def check_in_sync(found: Overview, wanted: Assignment, min_isr: Mapping[str, int]) -> None:
    """Check that moves can finish. A new replica needs a leader to copy from, and the last step of a move waits until
    ``min.insync.replicas`` of the remaining and new replicas are in sync."""
    if headless := [at for at in wanted if found.placed[at].leader < 0]:
        down = sorted({node for at in headless for node in found.placed[at].replicas} - found.live)
        raise CommandFailed(
            f"expected a leader for each partition that moves, found none for {names_of(headless)}: start broker "
            f"{_listed(down)}, or delete the topic, or let a replica that may lack records lead (tidelog elect "
            "--unclean)"
        )
    for at, replicas in wanted.items():
        before, in_sync = found.before(at), found.placed[at].isr
        after = [node for node in replicas if node in in_sync or node not in before]
        needed = effective_min_isr(min_isr[at.topic], replicas)
        if len(after) < needed:
            behind = [node for node in replicas if node not in after]
            raise CommandFailed(
                f"{at.topic}-{at.partition}: expected {needed} in-sync replicas afterwards ({MIN_ISR}), found "
                f"{_listed(after) or 'none'}: first start broker {_listed(behind)}, or wait until it is in sync"
            )


def _min_isr(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    names = sorted(topics)
    if not names:
        return {}
    found = admin.describe_configs([ConfigResource("topic", name) for name in names])
    return {at.name: int(settings[MIN_ISR].value or 1) for at, settings in found.items()}


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def unmovable(found: Overview) -> set[TopicPartition]:
    """Return partitions that a rebalance leaves alone: their replicas are already moving, or not all in sync."""
    return {
        at
        for at, placed in found.placed.items()
        if at in found.ongoing or placed.leader < 0 or not set(placed.replicas) <= set(placed.isr)
    }
