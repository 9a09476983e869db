"""What must hold after any sequence of events, on the whole controller. Failing sequences shrink to a few steps."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, NodeId, Offset, TopicIdPartition
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.calls.api import CreatePartitionsRequest, DeleteTopicsRequest, PartitionGrowth
from tidelog.proto.calls.reassignment_api import ElectLeadersRequest
from tidelog.proto.logs.metadata_records import PartitionRecord

from .conftest import Bench

BROKERS = (1, 2, 3, 4)
TOPICS = ("safe", "pair", "loose")
EVENTS = (
    "kill",
    "start clean",
    "start crashed",
    "start wiped",
    "beat",
    "shut down",
    "silence",
    "shrink",
    "expand",
    "balance",
    "disk fails",
    "new controller",
    "create",
    "delete",
    "grow",
    "min isr",
    "move",
    "cancel",
    "elect",
)
REPLICA_SETS = ((1,), (2, 1), (4, 3, 2), (3, 1, 4), (1, 2, 3, 4), (2, 4))


class World:
    """Brokers as processes: whether they run, and the epoch in their clean-shutdown file."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.running: set[int] = set()
        self.clean: dict[int, int] = {}
        self.dirs = {node: (100 + node,) for node in BROKERS}
        self.next_dir = 1000
        self.previous: MetadataImage = bench.controller.committed
        for node in BROKERS:
            self.start(node, "clean")
        self.create("safe")
        self.create("pair")
        self.create("loose")

    def start(self, node: int, how: str) -> None:
        if node in self.running:
            return
        self.bench.silence(node)
        if how == "wiped":
            self.next_dir += 1
            self.dirs[node] = (self.next_dir,)
        previous = self.clean.pop(node, -1) if how == "clean" else -1
        response = self.bench.register(node, previous=previous, dirs=self.dirs[node])
        assert response.error is ErrorCode.NONE, response
        self.running.add(node)
        self.bench.beat(node)

    def create(self, name: str) -> None:
        if self.bench.controller.committed.topic(name) is None:
            factor, extra = {
                "safe": (3, {"min_insync_replicas": "2"}),
                "pair": (2, {}),
                "loose": (2, {"unclean_leader_election_enable": "true"}),
            }[name]
            self.bench.create(name, partitions=2, factor=factor, **extra)

    def do(self, event: str, number: int) -> None:
        bench, node, name = self.bench, BROKERS[number % 4], TOPICS[number % 3]
        image: MetadataImage = bench.controller.committed
        topic = image.topic(name)
        match event:
            case "kill":
                self.running.discard(node)
                self.clean.pop(node, None)
            case "start clean" | "start crashed" | "start wiped":
                self.start(node, event.split()[1])
            case "beat" if node in self.running:
                bench.beat(node)
            case "shut down" if node in self.running:
                answer = bench.beat(node, want_shut_down=True)
                bench.controller.shutdown_committed(NodeId(node), Offset(bench.offset))
                if answer.should_shut_down:
                    self.running.discard(node)
                    self.clean[node] = bench.epochs[node]
            case "silence":
                bench.silence(*(other for other in BROKERS if other not in self.running))
            case "shrink" | "expand" if topic is not None:
                partition = topic.partitions[number % len(topic.partitions)]
                if partition.leader in self.running:
                    isr = set(partition.isr)
                    isr = isr - {NodeId(node)} | {partition.leader} if event == "shrink" else isr | {NodeId(node)}
                    bench.alter_isr(name, tuple(sorted(isr)), number=partition.partition)
            case "balance":
                bench.take(bench.controller.balance())
            case "disk fails" if node in self.running:
                bench.beat(node, offline=self.dirs[node])
            case "new controller":
                controller = bench.controller
                controller.resign()
                bench.take(controller.lead(ControllerEpoch(controller.committed.epoch + 1), bench.now_ms))
            case "create":
                self.create(name)
            case "delete" if topic is not None:
                bench.ask(DeleteTopicsRequest((name,)))
            case "grow" if topic is not None:
                bench.ask(CreatePartitionsRequest((PartitionGrowth(name, len(topic.partitions) + 1),)))
            case "min isr" if topic is not None:
                bench.set("topic", name, "min.insync.replicas", str(1 + number % 2))
            case "move" if topic is not None:
                bench.move(name, REPLICA_SETS[number // 2], number=number % len(topic.partitions))
            case "cancel" if topic is not None:
                bench.move(name, None, number=number % len(topic.partitions))
            case "elect" if topic is not None:
                bench.ask(ElectLeadersRequest("preferred", all_partitions=True))
            case _:
                pass

    def check(self) -> None:
        controller = self.bench.controller
        image: MetadataImage = controller.committed
        assert not image.unpublished
        for topic in image.topics.values():
            assert sorted(topic.partitions) == list(range(len(topic.partitions)))
            wanted = controller.configs.min_isr(image, topic)
            unclean = controller.configs.unclean_election(image, topic.name)
            for number, partition in topic.partitions.items():
                at = TopicIdPartition(topic.topic_id, number)
                replicas, adding, removing = (
                    set(found) for found in (partition.replicas, partition.adding_replicas, partition.removing_replicas)
                )
                assert len(replicas) == len(partition.replicas) == len(partition.directories)
                assert adding | removing <= replicas
                assert not adding & removing
                assert replicas - adding, "nobody was there before"
                assert replicas - removing, "nobody is to be there"
                min_isr = effective_min_isr(wanted, replicas, adding, removing)
                target_isr = set(partition.isr) - removing
                if adding or removing:
                    enough = len(target_isr) >= min(wanted, len(replicas - removing))
                    assert not (adding <= target_isr and enough), "a reassignment that could end goes on"
                isr, elr = set(partition.isr), set(partition.eligible_leader_replicas)
                assert len(isr) == len(partition.isr)
                assert isr | elr | set(partition.last_known_elr) <= set(partition.replicas)
                assert not isr & elr
                assert not elr or len(isr) < min_isr, "an ELR beside an ISR that lets the high watermark rise"
                assert all(image.is_active(node) for node in isr), "a broker that is away is in an ISR"
                assert all(image.has_online_directory(node, partition) for node in isr), "a failed directory is in sync"
                remembered = set(partition.last_known_elr)
                assert not remembered & (isr | elr)
                assert not remembered or len(isr) < min_isr, "remembered for what was committed without them since"
                if partition.leader >= 0:
                    assert partition.leader in isr
                    assert image.has_online_directory(partition.leader, partition)
                else:
                    able = [node for node in (isr or elr) if image.is_active(node)]
                    assert not any(image.has_online_directory(NodeId(node), partition) for node in able)
                    if unclean:
                        assert not any(
                            image.is_active(node) and image.has_online_directory(node, partition)
                            for node in partition.replicas
                        )
                self.check_against_before(at, partition)
        self.previous = image
        assert decode_snapshot(encode_snapshot(image)) == image
        assert controller.draft == image

    def check_against_before(self, at: TopicIdPartition, partition: PartitionRecord) -> None:
        before = self.previous.partition(*at)
        if before is None:
            return
        assert partition.partition_epoch >= before.partition_epoch
        assert partition.leader_epoch >= before.leader_epoch
        if partition.leader != before.leader:
            assert partition.leader_epoch > before.leader_epoch, "another leader under the same leader epoch"
        if partition != before:
            assert partition.partition_epoch > before.partition_epoch
        if not set(before.replicas) <= set(partition.replicas):
            assert partition.leader_epoch > before.leader_epoch, "a replica goes, and the leader need not notice"
            left = set(partition.isr)
            lost = {*before.isr, *before.eligible_leader_replicas, *before.last_known_elr} - set(partition.replicas)
            settings = self.bench.controller.configs
            topic = self.bench.controller.committed.topics[at.topic_id]
            if lost and not settings.unclean_election(self.bench.controller.committed, topic.name):
                wanted = settings.min_isr(self.bench.controller.committed, topic)
                needed = effective_min_isr(
                    wanted, partition.replicas, partition.adding_replicas, partition.removing_replicas
                )
                assert len(left) >= needed, "too few are left of those that have everything"
        was_known = {*before.isr, *before.eligible_leader_replicas, *before.last_known_elr}
        if (before.adding_replicas or before.removing_replicas) and partition.replicas != before.replicas:
            was_known |= set(partition.isr)  # one more in sync has ended a reassignment, and may lead at once
        if partition.leader != before.leader and partition.leader >= 0 and not partition.leader_recovery:
            assert partition.leader in was_known, "a clean election of a replica that was not known to be whole"


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=30))
def test_invariants_hold_after_every_event(events: list[tuple[str, int]]) -> None:
    world = World(Bench())
    highest = world.bench.controller.committed.broker_epoch_highest
    world.check()
    for event, number in events:
        world.do(event, number)
        world.check()
        assert world.bench.controller.committed.broker_epoch_highest >= highest
        highest = world.bench.controller.committed.broker_epoch_highest


def test_the_check_rejects_a_leader_outside_the_isr() -> None:
    """A check that cannot fail is a defect."""
    from tidelog.proto.logs.metadata_records import PartitionChangeRecord

    world = World(Bench())
    topic = world.bench.topic("pair")
    outsider = next(node for node in BROKERS if node not in topic.partitions[0].replicas)
    world.bench.take((PartitionChangeRecord(topic.topic_id, 0, leader=NodeId(outsider)),))
    with pytest.raises(AssertionError):
        world.check()
