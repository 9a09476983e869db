"""The drills: the announcement, the objectives and the actions of each.

To write one: a function that acts on a :class:`Stage`, and a row in :data:`DRILLS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.chaos.drill.evidence import longest_commit, longest_leaderless, longest_silence
from tidelog.chaos.drill.objectives import LEADERLESS_S, WORDS, Limits, Objective
from tidelog.chaos.drill.reach import Reach
from tidelog.chaos.drill.stage import FAULT, HEAL, SEEN, Milestone, Stage
from tidelog.chaos.drill.target import Found, check_racks
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import NO_NODE

BETWEEN_S: Final = 0.5
"""Pause between two nodes of a rolling restart, once everything is whole."""
NOTHING_LOST: Final = (Objective("lost", 0), Objective("duplicated", 0))


def in_the_end(limits: Limits) -> tuple[Objective, ...]:
    """Return the objectives of every drill once everything is undone."""
    return (Objective("whole_s", limits.whole_s), Objective("errors", 0), *NOTHING_LOST, Objective("unhealthy", 0))


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill. ``hits`` returns the nodes that it will hit, as far as known beforehand; ``apart``: a cluster made for
    it has separate controllers, so that the effects are theirs alone."""

    name: str
    summary: str
    steps: Callable[[Found, float], Sequence[str]]
    objectives: Callable[[Found, Limits], Sequence[Objective]]
    perform: Callable[[Stage], None]
    check: Callable[[Found, Reach], None] = lambda found, reach: None
    """Raises :class:`CommandFailed` if the drill cannot run on this cluster."""
    apart: bool = False
    racks: int = 0
    """The number of racks of a cluster made for it; 0 for none."""
    between_releases: bool = False
    """Whether it needs the Pythons with which nodes are started, before and after."""
    value_bytes: int = 200
    warm_up_s: float = 2.0


# --- Leaders and brokers ----------------------------------------------------------------------------------------------


def _lose_leader(stage: Stage) -> None:
    node = stage.leads_most({stage.whole_standing().controller})
    led = stage.led_by([node])
    fault_s = stage.kill([node], f"node {node}, leader of {_partitions(led)}: kill -9")
    stage.reach_milestones(fault_s, _lost(stage, fault_s, [node], led))
    stage.rest(BETWEEN_S)
    _keep_silence(stage, stage.everywhere, fault_s)
    stage.bring_back([node])


def _lose_broker(stage: Stage) -> None:
    controllers = {*stage.found.voters}
    node = next((each for each in stage.found.brokers if each not in controllers), None)
    if node is None:
        node = max(each for each in stage.found.brokers if each != stage.whole_standing().controller)
    led = stage.led_by([node])
    fault_s = stage.kill([node], f"node {node}, leader of {_partitions(led)}: kill -9, and it stays away")
    stage.reach_milestones(fault_s, _lost(stage, fault_s, [node], led))
    stage.rest_until(fault_s + stage.away_s)
    _keep_silence(stage, stage.everywhere, fault_s)
    _keep_meanwhile(stage, fault_s, stage.traffic.now())
    stage.bring_back([node])


def _lose_rack(stage: Stage) -> None:
    """Stop the rack that leads most partitions of the topic, whether or not it has the active controller."""
    controller = stage.whole_standing().controller
    racks = stage.found.by_rack
    rack = max(racks, key=lambda each: (len(stage.led_by(racks[each])), controller in racks[each], each))
    nodes = racks[rack]
    led = stage.led_by(nodes)
    what = f"rack {rack}, {_nodes(nodes)}{', with the active controller' if controller in nodes else ''}"
    fault_s = stage.kill(nodes, f"{what}, leader of {_partitions(led)}: kill -9, all at once, and it stays away")
    milestones = _lost(stage, fault_s, nodes, led)
    if controller in nodes:
        milestones += [stage.another_controller(fault_s, nodes), stage.changed(fault_s)]
    stage.reach_milestones(fault_s, milestones)
    stage.rest_until(fault_s + stage.away_s)
    _keep_silence(stage, stage.everywhere, fault_s)
    _keep_meanwhile(stage, fault_s, stage.traffic.now())
    stage.bring_back(nodes)


def _restart_all(stage: Stage) -> None:
    """Restart all nodes, the active controller last: it moves once."""
    began_s = stage.traffic.now()
    controller = stage.whole_standing().controller
    for node in sorted(stage.found.nodes, key=lambda each: (each == controller, each)):
        asked_s = stage.traffic.now()
        stage.say(FAULT, f"node {node}{', the active controller' if node == controller else ''}: shut down in order")
        stage.reach.stop(node)
        gone_s = stage.traffic.now()
        stage.worst("shutdown_s", gone_s - asked_s)
        stage.say(SEEN, f"it is gone: {gone_s - asked_s:.2f} s", gone_s)
        stage.bring_back([node])
        if stage.measures["whole_s"] is None:
            stage.say(SEEN, "leaving the rest as it is: another restart could cost data")
            break
        stage.rest(BETWEEN_S)
    leaderless_s = longest_leaderless(stage.evidence.seen[:], began_s, stage.traffic.now())
    stage.worst("leaderless_s", leaderless_s)
    stage.say(SEEN, f"{WORDS['leaderless_s']}: {leaderless_s:.2f} s")
    _keep_silence(stage, stage.everywhere, began_s)


def _upgrade_all(stage: Stage) -> None:
    stage.reach.go_over()
    _restart_all(stage)


def _fill_disk(stage: Stage) -> None:
    node = stage.leads_most({stage.whole_standing().controller})
    led = stage.led_by([node])
    fault_s = stage.fill(node, f"node {node}, leader of {_partitions(led)}: its disk takes nothing more")
    stage.reach_milestones(fault_s, [stage.led_elsewhere(fault_s, [node], led), *stage.taken_again(fault_s, led)])
    stage.rest_until(fault_s + stage.away_s)
    _keep_silence(stage, stage.everywhere, fault_s)
    runs = stage.reach.running(node)
    stage.say(
        SEEN,
        f"node {node} still runs on its other directories"
        if runs
        else f"node {node} has stopped: it had no other log directory",
    )
    stage.reach.free(node)
    stage.say(HEAL, f"there is room on the disk of node {node}; what failed comes back when it is started again")
    if runs:
        stage.reach.stop(node)
    stage.bring_back([node])


def _lost(stage: Stage, fault_s: float, nodes: Sequence[int], led: Sequence[int]) -> list[Milestone]:
    """Return the milestones after the end of brokers that led these partitions."""
    if not set(nodes) & set(stage.found.brokers):
        return []
    found = [stage.fenced(fault_s, nodes)]
    if led:
        found += [stage.led_elsewhere(fault_s, nodes, led), *stage.taken_again(fault_s, led)]
    return found


def _can_fill(found: Found, reach: Reach) -> None:
    if not reach.can_fill:
        raise CommandFailed(
            "expected a way to fill a disk, found none: nodes on this machine need a system with prlimit(2), others "
            "--fill-command and --free-command, or --by-hand"
        )


# --- Controllers ------------------------------------------------------------------------------------------------------


def _fail_over(stage: Stage) -> None:
    node = stage.whole_standing().controller
    led = stage.led_by([node])
    also = f", leader of {_partitions(led)}" if led else ""
    fault_s = stage.kill([node], f"node {node}, the active controller{also}: kill -9")
    stage.reach_milestones(
        fault_s,
        [stage.another_controller(fault_s, [node]), stage.changed(fault_s), *_lost(stage, fault_s, [node], led)],
    )
    stage.rest(BETWEEN_S)
    _keep_silence(stage, stage.everywhere, fault_s)
    stage.bring_back([node])


def _lose_minority(stage: Stage) -> None:
    others = [node for node in stage.found.voters if node != stage.whole_standing().controller]
    nodes = others[: (len(stage.found.voters) - 1) // 2]
    led = stage.led_by(nodes)
    fault_s = stage.kill(nodes, f"{_nodes(nodes)}, a minority of the controllers: kill -9")
    stage.reach_milestones(fault_s, [stage.changed(fault_s), *_lost(stage, fault_s, nodes, led)])
    stage.rest_until(fault_s + stage.away_s)
    now_s = stage.traffic.now()
    stage.measures["commit_longest_s"] = longest_commit(stage.evidence.commits[:], fault_s, now_s)
    _keep_silence(stage, stage.everywhere, fault_s)
    _keep_meanwhile(stage, fault_s, now_s)
    stage.bring_back(nodes)


def _lose_quorum(stage: Stage) -> None:
    controller = stage.whole_standing().controller
    others = [node for node in stage.found.voters if node != controller]
    nodes = [controller, *others[: len(stage.found.voters) // 2]]
    spared = stage.spared(nodes)
    fault_s = stage.kill(nodes, f"{_nodes(nodes)}, a majority of the controllers: kill -9")
    gone_s = stage.traffic.now()
    stage.rest_until(fault_s + stage.away_s)
    now_s = stage.traffic.now()
    commits = stage.evidence.commits[:]
    stage.measures["commits_meanwhile"] = sum(one.began_s >= gone_s for one in commits)
    _keep_meanwhile(stage, fault_s, now_s)
    stage.say(SEEN, f"metadata: changes committed meanwhile: {stage.measures['commits_meanwhile']}, one waits")
    if spared:
        _keep_silence(stage, spared, fault_s)

    def back(started_s: float) -> Milestone:
        return "back_s", lambda: min(
            (one.ended_s - started_s for one in stage.evidence.commits[len(commits) :]), default=None
        )

    stage.bring_back(nodes, more=[back])
    longest = longest_commit(stage.evidence.commits[:], 0.0, stage.traffic.now())
    stage.measures["commit_longest_s"] = longest


def _quorum_objectives(found: Found, limits: Limits) -> Sequence[Objective]:
    hit_brokers = set(found.voters) & set(found.brokers)
    silence = () if hit_brokers else (Objective("silence_s", limits.leader_s),)
    return (
        Objective("commits_meanwhile", 0),
        *silence,
        Objective("back_s", limits.whole_s),
        *in_the_end(limits),
    )


# --- Measurements of all drills ---------------------------------------------------------------------------------------


def _keep_silence(stage: Stage, partitions: Sequence[int], from_s: float) -> None:
    """Measure the longest time without an acknowledgement on one partition, from then to now."""
    acknowledgements = stage.evidence.acknowledged_since(from_s)
    partition, began_s, length = longest_silence(acknowledgements, partitions, from_s, stage.traffic.now())
    stage.worst("silence_s", length)
    stage.say(SEEN, f"{WORDS['silence_s']}: {length:.2f} s, partition {partition} from {began_s:.2f} s on")


def _keep_meanwhile(stage: Stage, from_s: float, to_s: float) -> None:
    """Measure the traffic between a fault and its end."""
    evidence = stage.evidence
    told = [one for one in evidence.acknowledged_since(from_s) if one.began_s >= from_s and one.ended_s <= to_s]
    partitions = {one.partition for one in told}
    handed = sum(count for at_s, _, count in evidence.handed[:] if from_s <= at_s <= to_s)
    stage.measures["acknowledged_meanwhile"] = len(told)
    stage.measures["partitions_meanwhile"] = len(partitions)
    stage.measures["handed_meanwhile"] = handed
    stage.say(
        SEEN,
        f"data: {len(told):,} records acknowledged in {len(partitions)} of {len(stage.everywhere)} partitions, "
        f"{handed:,} handed to a reader in {to_s - from_s:.1f} s",
    )


def _partitions(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no partition"
    return f"partition{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _racks(found: Found) -> str:
    return ", ".join(f"{rack} ({_nodes(nodes)})" for rack, nodes in found.by_rack.items())


def _now(found: Found) -> str:
    return "" if found.controller == NO_NODE else f", node {found.controller} now"


BACK: Final = "restart it, and wait until every replica is in sync"

_ALL: Final = (
    Drill(
        "controller-failover",
        "Kill the active controller; another one must take over.",
        lambda found, away_s: (f"kill (kill -9) the active controller{_now(found)}", BACK),
        lambda found, limits: (
            Objective("commit_s", limits.controller_s),
            *([Objective("silence_s", limits.leader_s)] if found.controller in found.brokers else []),
            *in_the_end(limits),
        ),
        _fail_over,
    ),
    Drill(
        "leader-loss",
        "Kill the broker that leads most partitions; others must lead them.",
        lambda found, away_s: (
            "kill (kill -9) the broker that leads most partitions of the topic, if possible not the active controller",
            BACK,
        ),
        lambda found, limits: (
            Objective("every_partition_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _lose_leader,
    ),
    Drill(
        "broker-loss",
        "Kill a broker and keep it away; the others must carry on, and it must catch up.",
        lambda found, away_s: (
            f"kill (kill -9) a broker that is not the active controller, to be away for {away_s:g} s",
            BACK,
        ),
        lambda found, limits: (
            Objective("silence_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _lose_broker,
    ),
    Drill(
        "rack-loss",
        "Kill all nodes of a rack at once and keep them away; the other racks must carry on.",
        lambda found, away_s: (
            "kill (kill -9) all nodes of the rack that leads most partitions of the topic at once, to be away for "
            f"{away_s:g} s; the racks: {_racks(found)}",
            "restart them, and wait until every replica is in sync",
        ),
        lambda found, limits: (
            Objective("silence_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _lose_rack,
        check=lambda found, reach: check_racks(found),
        racks=3,
    ),
    Drill(
        "rolling-restart",
        "Restart every node cleanly, one after the other; clients must not notice.",
        lambda found, away_s: (
            f"of each node in turn ({', '.join(map(str, found.nodes))}; the active controller last): shut it down in "
            "order (SIGTERM), start it, wait until every replica is in sync",
        ),
        lambda found, limits: (
            Objective("leaderless_s", LEADERLESS_S),
            Objective("silence_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _restart_all,
    ),
    Drill(
        "rolling-upgrade",
        "Restart every node cleanly with another release, one after the other; clients must not notice.",
        lambda found, away_s: (
            f"of each node in turn ({', '.join(map(str, found.nodes))}; the active controller last): shut it down in "
            "order (SIGTERM), start it with the release that --to names, wait until every replica is in sync",
            "leave the feature levels as they are: every node can go back, until `tidelog features upgrade`",
        ),
        lambda found, limits: (
            Objective("leaderless_s", LEADERLESS_S),
            Objective("silence_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _upgrade_all,
        between_releases=True,
    ),
    Drill(
        "disk-full",
        "Let a broker's disk run full; others must lead its partitions.",
        lambda found, away_s: (
            "let the disk of the broker that leads most partitions of the topic take nothing more, for "
            f"{away_s:g} s or until records are acknowledged again",
            "make room, restart that broker, and wait until every replica is in sync",
        ),
        lambda found, limits: (
            Objective("every_partition_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _fill_disk,
        check=_can_fill,
        value_bytes=4_000,
        warm_up_s=3.0,
    ),
    Drill(
        "minority-loss",
        "Kill a minority of the controllers; nothing may wait for them.",
        lambda found, away_s: (
            f"kill (kill -9) {(len(found.voters) - 1) // 2} of {len(found.voters)} controllers, not the active one, "
            f"to be away for {away_s:g} s",
            BACK,
        ),
        lambda found, limits: (
            Objective("commit_longest_s", limits.controller_s),
            Objective("silence_s", limits.leader_s),
            *in_the_end(limits),
        ),
        _lose_minority,
        apart=True,
    ),
    Drill(
        "quorum-loss",
        "Kill a majority of the controllers: see what goes on, what waits, and that the cluster recovers.",
        lambda found, away_s: (
            f"kill (kill -9) {len(found.voters) // 2 + 1} of {len(found.voters)} controllers, the active one among "
            f"them, to be away for {away_s:g} s: no metadata can change",
            "watch what goes on without: records are taken and read where every replica in sync is alive",
            "start them again; metadata changes must be committed again, and every replica be in sync",
        ),
        _quorum_objectives,
        _lose_quorum,
        apart=True,
    ),
)

DRILLS: Final[Mapping[str, Drill]] = {drill.name: drill for drill in _ALL}
"""By name."""
