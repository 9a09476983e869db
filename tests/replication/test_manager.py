"""Replica managers together, over a memory network, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.virtual_time import in_virtual_time
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, TopicId, TopicIdPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.api import (
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from tidelog.proto.calls.controller_api import AlteredPartition, AlterPartitionItem, AlterPartitionResponse
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import ProducePartition, ProduceRequest
from tidelog.proto.transport.network import CallTimeout, ConnectionLost
from tidelog.replication.serving.producing import BATCHES_MAX

from .managers import Cluster, MakeCluster, until
from .rig import TOPIC_ID, ProducerFields


def numbered(base_sequence: int) -> ProducerFields:
    return {"producer_id": 5, "producer_epoch": 0, "base_sequence": base_sequence}


def cut(c: Cluster, a: int, b: int) -> None:
    """No more between the two, in both directions."""
    c.fabric.cut(f"node-{a}", f"node-{b}")
    c.fabric.cut(f"node-{b}", f"node-{a}")


# --- bounds -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_request_has_at_most_so_many_batches_over_all_partitions(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        one, most = bytes(encode_values([b"v"], 0)), BATCHES_MAX
        torn = one[:-1]
        for pieces, refused in (
            ([one * (most + 1)], [True]),
            ([one * most, one], [False, True]),
            ([one * most + torn, one], [True, True]),
        ):
            items = [ProducePartition(TOPIC_ID, 0, each) for each in pieces]
            answers = await c[1].answers(ProduceRequest(1, 1_000, items))
            assert [each.error is ErrorCode.CORRUPT_MESSAGE for each in answers] == refused
            assert "expected at most 0 further batches" in answers[-1].error_message or len(pieces) == 1
        assert len(c[1].values()) == most


# --- acknowledgement --------------------------------------------------------------------------------


@in_virtual_time
async def test_acks_all_is_answered_by_replication_and_not_by_a_timer(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        loop = asyncio.get_running_loop()
        await c[1].produce(b"first")
        begun = loop.time()
        answer = await c[1].produce(b"a", b"b")
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, 1)
        assert loop.time() - begun < 0.01
        assert c[1].values(committed=True) == [b"first", b"a", b"b"]
        for node in (2, 3):
            assert c[node].values() == [b"first", b"a", b"b"]


@in_virtual_time
async def test_no_acknowledgement_before_the_high_watermark(cluster: MakeCluster) -> None:
    """One in-sync follower hears nothing: acks=all times out with its outcome unknown, acks=1 does not wait."""
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 3)
        pending = c[1].manager.produce(
            ProduceRequest(-1, 2_000, [ProducePartition(TopicId(bytes(range(16))), 0, encode_values([b"b"], 0))])
        )
        assert (await c[1].produce(b"c", acks=1)).error is ErrorCode.NONE
        await asyncio.sleep(1.9)
        assert isinstance(pending, asyncio.Future)
        assert not pending.done()
        assert c[2].values() == [b"a", b"b", b"c"], "the other follower has it: not enough"
        assert c[1].values(committed=True) == [b"a"]
        (answer,) = await pending
        assert answer.error is ErrorCode.REQUEST_TIMED_OUT
        assert c[1].manager.producing.budget.waiting == 0
        assert len(c[1].manager.replicas[c.states.popitem()[0]].committing) == 0


@in_virtual_time
async def test_a_deposed_leader_answers_waiters_as_unknown_and_never_as_success(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, min_insync_replicas=2)
        await c[1].produce(b"a")
        for node in (2, 3):
            cut(c, 1, node)
        pending = c[1].begin(b"zombie")
        c.deaf.add(NodeId(1))
        state = c.change(leader=NodeId(2), isr=(2, 3))
        assert (await c[2].produce(b"b")).error is ErrorCode.NONE
        await asyncio.sleep(1)
        assert not pending.done()
        c.deaf.clear()
        c.fabric.heal()
        c.tell(state)
        answer = await pending
        assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader, answer.current_leader_epoch) == (2, 1)
        await until(lambda: c[1].values() == [b"a", b"b"])
        again = await c[1].produce(b"c")
        assert (again.error, again.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


@in_virtual_time
async def test_one_call_with_several_partitions_yields_one_answer_with_an_error_each(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3)
        c.change(1, leader=NodeId(2))
        topic, other = TopicId(bytes(range(16))), TopicId(bytes(16))
        good, bad = encode_values([b"x"], 0), bytearray(encode_values([b"x"], 0))
        bad[-1] ^= 1
        items: list[tuple[TopicId, int, Buffer]] = [
            (topic, 0, good),
            (topic, 1, good),
            (other, 0, good),
            (topic, 2, bad),
            (topic, 2, good),
            (topic, 2, b""),
        ]
        answers = await c[1].answers(ProduceRequest(-1, 1_000, [ProducePartition(*item) for item in items]))
        assert [(item.topic_id, item.partition) for item in answers] == [item[:2] for item in items]
        assert [item.error for item in answers] == [
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
        ]
        wrong = await c[1].produce(b"x", acks=2)
        assert wrong.error is ErrorCode.INVALID_REQUIRED_ACKS


@in_virtual_time
async def test_a_retry_of_what_is_not_committed_yet_waits_for_the_same_offset(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        cut(c, 1, 3)
        first = c[1].begin(b"a", timeout_ms=60_000, **numbered(0))
        later = c[1].begin(b"b", timeout_ms=60_000)
        await asyncio.sleep(0.5)
        again = c[1].begin(b"a", timeout_ms=60_000, **numbered(0))
        await asyncio.sleep(0.5)
        assert not first.done()
        assert not again.done()
        c.fabric.heal()
        answers = await asyncio.gather(first, later, again)
        assert [(item.error, item.base_offset) for item in answers] == [(0, 0), (0, 1), (0, 0)]


@in_virtual_time
async def test_a_caller_that_gave_up_leaves_nothing_behind(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        cut(c, 1, 3)
        pending = c[1].begin(b"a")
        poll = c[1].poll(0, wait_ms=60_000)
        await asyncio.sleep(0.01)
        assert c[1].manager.producing.budget.waiting == 1
        assert c[1].manager.consuming.waiting == 1
        pending.cancel()
        poll.cancel()
        await asyncio.sleep(0.01)
        assert c[1].manager.producing.budget.waiting == 0
        assert c[1].manager.consuming.waiting == 0
        (replica,) = c[1].manager.replicas.values()
        assert not len(replica.committing)
        assert not replica.consumers


# --- ISR --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_silent_follower_leaves_the_isr_and_comes_back(cluster: MakeCluster) -> None:
    async with cluster(replica_lag_time_max_ms=2_000) as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 3)
        begun = asyncio.get_running_loop().time()
        answer = await c[1].produce(b"b")
        assert answer.error is ErrorCode.NONE
        assert 2.0 <= asyncio.get_running_loop().time() - begun <= 3.1
        (state,) = c.states.values()
        assert state.isr == (1, 2)
        assert c[1].manager.isr_shrinks == 1
        c.fabric.heal()
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3})
        assert c[3].values() == [b"a", b"b"]
        assert c[1].manager.isr_expands == 1


@in_virtual_time
async def test_new_settings_alone_take_effect_at_once(cluster: MakeCluster) -> None:
    """No ISR change, no append and no fetch comes with them."""
    async with cluster(replica_lag_time_max_ms=2_000) as c:
        c.create(leader=1, min_insync_replicas=2)
        for node in (2, 3):
            c[node].kill()
        await until(lambda: next(iter(c.states.values())).isr == (1,))
        assert (await c[1].produce(b"a", acks=1)).error is ErrorCode.NONE
        assert c[1].values(committed=True) == []
        (state,) = c.states.values()
        c.tell(replace(state, config=TopicConfig(min_insync_replicas=1, max_message_bytes=100)))
        assert c[1].values(committed=True) == [b"a"]
        assert (await c[1].produce(b"x" * 200)).error is ErrorCode.MESSAGE_TOO_LARGE


@in_virtual_time
async def test_an_isr_change_without_an_answer_is_asked_again(cluster: MakeCluster) -> None:
    async with cluster() as c:
        lost = [ConnectionLost("gone"), CallTimeout("late")]
        c.answer_alter = lambda node, items: lost.pop() if lost else None
        c.create(leader=1, isr=(1, 2))
        await c[1].produce(b"a")
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3})
        assert len(c.alter_requests) == 3
        assert len({items for _, items in c.alter_requests}) == 1


@in_virtual_time
async def test_an_isr_change_that_took_effect_without_an_answer_is_settled_by_metadata(cluster: MakeCluster) -> None:
    """The retry is refused with INVALID_UPDATE_VERSION: newer metadata is on its way, and decides."""
    async with cluster() as c:

        def apply_and_lose(node: NodeId, items: tuple[AlterPartitionItem, ...]) -> ConnectionLost:
            c.answer_alter = lambda node, items: None
            c.deaf.add(NodeId(1))
            for item in items:
                c.altered(item)
            return ConnectionLost("the answer is lost")

        c.answer_alter = apply_and_lose
        c.create(leader=1, isr=(1, 2))
        await c[1].produce(b"a")
        await until(lambda: len(c.alter_requests) == 2)
        await asyncio.sleep(0.5)
        leading = c[1].leading()
        assert leading.isr.maximal == {1, 2, 3}
        assert set(leading.isr.committed) == {1, 2}
        assert len(c.alter_requests) == 2, "nothing to ask for until metadata has come"
        c.deaf.clear()
        c.tell(*c.states.values())
        assert set(leading.isr.committed) == {1, 2, 3}
        assert leading.isr.proposal is None


@in_virtual_time
async def test_a_controller_that_goes_on_refusing_is_asked_at_growing_intervals(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.answer_alter = lambda node, items: AlterPartitionResponse(
            ErrorCode.NONE,
            tuple(AlteredPartition(i.topic_id, i.partition, ErrorCode.INELIGIBLE_REPLICA) for i in items),
        )
        c.create(leader=1, isr=(1, 2))
        await c[1].produce(b"a")
        await asyncio.sleep(10)
        assert 8 <= len(c.alter_requests) <= 40


@in_virtual_time
async def test_a_refused_joiner_is_asked_for_again_later(cluster: MakeCluster) -> None:
    """The controller does not know of the follower's unfencing yet."""
    async with cluster() as c:
        refusals = 3

        def refuse(node: NodeId, items: tuple[AlterPartitionItem, ...]) -> AlterPartitionResponse | None:
            nonlocal refusals
            refusals -= 1
            if refusals < 0:
                return None
            return AlterPartitionResponse(
                ErrorCode.NONE,
                tuple(AlteredPartition(i.topic_id, i.partition, ErrorCode.INELIGIBLE_REPLICA) for i in items),
            )

        c.answer_alter = refuse
        c.create(leader=1, isr=(1, 2))
        for number in range(10):
            await c[1].produce(b"%d" % number)
            await asyncio.sleep(1)
        assert set(next(iter(c.states.values())).isr) == {1, 2, 3}


# --- failover ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_kill_of_the_leader_loses_nothing_acknowledged_and_duplicates_nothing(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, min_insync_replicas=2)
        for number in range(20):
            assert (await c[1].produce(b"%d" % number, **numbered(number))).error == 0
        pending = c[1].begin(b"20", **numbered(20))
        await asyncio.sleep(0)
        c[1].kill()
        c.fenced.add(NodeId(1))
        c.change(leader=NodeId(2), isr=(2, 3))
        pending.cancel()
        answer = await c[2].produce(b"20", **numbered(20))
        assert answer.error is ErrorCode.NONE
        assert answer.base_offset == 20
        c.fenced.clear()
        await c[1].start()
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3})
        expected = [b"%d" % number for number in range(21)]
        for node in (1, 2, 3):
            assert c[node].values() == expected
        assert (await c[2].produce(b"21", **numbered(21))).base_offset == 21


@in_virtual_time
async def test_a_follower_asks_again_soon_when_its_leader_has_not_heard_yet_that_it_leads(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.deaf.add(NodeId(2))
        state = c.change(leader=NodeId(2))
        await asyncio.sleep(0.05)
        c.deaf.clear()
        c.tell(state)
        begun = asyncio.get_running_loop().time()
        assert (await c[2].produce(b"b")).error is ErrorCode.NONE
        assert asyncio.get_running_loop().time() - begun < 0.2


@in_virtual_time
async def test_a_stream_that_breaks_is_opened_again_and_goes_on(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        for number in range(5):
            assert (await c[1].produce(b"%d" % number)).error is ErrorCode.NONE
            c.fabric.break_connections("node-1")
        assert (await c[1].produce(b"5")).error is ErrorCode.NONE
        assert c[3].values() == [b"%d" % number for number in range(6)]


@in_virtual_time
async def test_a_restarted_follower_begins_with_its_checkpointed_high_watermark(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        await until(lambda: c[2].partition().high_watermark == 1)
        c[2].logs.checkpoint(c[2].manager.high_watermarks())
        c[2].kill()
        c.deaf.add(NodeId(2))
        cut(c, 1, 2)
        await c[2].start()
        assert c[2].partition().high_watermark == 1
        c.fabric.heal()


@in_virtual_time
async def test_the_high_watermark_reaches_idle_followers_within_one_long_poll(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        await asyncio.sleep(0.6)
        assert [c[node].partition().high_watermark for node in (1, 2, 3)] == [1, 1, 1]


@in_virtual_time
async def test_a_fenced_broker_stops_leading_until_a_newer_epoch(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        cut(c, 1, 2)
        pending = c[1].begin(b"a")
        await asyncio.sleep(0.01)
        c[1].manager.fence()
        assert (await pending).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await c[1].produce(b"b")).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        c.fabric.heal()
        c.change(leader=NodeId(1))
        assert (await c[1].produce(b"c")).error is ErrorCode.NONE


@in_virtual_time
async def test_removal_answers_waiters_and_deletes_the_log(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        cut(c, 1, 2)
        pending = c[1].begin(b"a")
        poll = c[1].poll(0, wait_ms=60_000)
        await asyncio.sleep(0.01)
        (key,) = c.states
        for node in (1, 2, 3):
            c[node].manager.remove([key], delete=True)
        assert (await pending).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await poll).partitions[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert c[1].logs.get(*key) is None
        assert (await c[1].produce(b"a")).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await c[1].poll(0)).partitions[0].error is ErrorCode.UNKNOWN_TOPIC_ID
        c.states.clear()
        await asyncio.sleep(2)


@in_virtual_time
async def test_lookups_by_name_and_by_id(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        listed = c[1].manager.list_offsets(
            ListOffsetsRequest((ListOffsetsPartition("t", 0, -1), ListOffsetsPartition("other", 0, -1)))
        )
        assert [(item.error, item.offset) for item in listed.results] == [
            (ErrorCode.NONE, 1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        listed = c[2].manager.list_offsets(ListOffsetsRequest((ListOffsetsPartition("t", 0, -1),)))
        assert listed.results[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        (key,) = c.states
        ends = c[1].manager.offset_for_leader_epoch(
            OffsetForLeaderEpochRequest(
                (EpochEndPartition(*key, LeaderEpoch(0)), EpochEndPartition(TopicId(bytes(16)), 0, LeaderEpoch(0)))
            )
        )
        assert [(item.error, item.leader_epoch, item.end_offset) for item in ends.results] == [
            (ErrorCode.NONE, 0, 1),
            (ErrorCode.UNKNOWN_TOPIC_ID, -1, -1),
        ]


@in_virtual_time
async def test_a_leaderless_partition_serves_nobody_and_goes_on_when_there_is_a_leader(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.change(leader=NO_NODE)
        assert (await c[1].produce(b"b")).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(1)
        c.change(leader=NodeId(3))
        assert (await c[3].produce(b"b")).base_offset == 1


@in_virtual_time
async def test_a_bug_in_a_background_task_ends_the_node_and_does_not_vanish(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.answer_alter = lambda node, items: KeyError("a bug")
        c.create(leader=1, isr=(1, 2))
        await c[1].produce(b"a")
        await asyncio.sleep(1)
        assert [type(bug) for bug in c.bugs] == [KeyError]
        c.bugs.clear()


@in_virtual_time
async def test_apply_in_slices_lets_others_run(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=50)
        states = tuple(c.states.values())
        for node in (1, 2, 3):
            c[node].manager.remove([state.key for state in states], delete=True)
        await c[1].manager.apply_in_slices(states)
        assert len(c[1].manager.replicas) == 50
        assert c[1].manager.partition(TopicIdPartition(states[0].topic_id, 49)) is not None
        assert c[1].manager.partition_named("t", 49) is not None


@pytest.mark.parametrize("acks", [0, 1])
@in_virtual_time
async def test_acks_0_and_1_do_not_wait_for_followers(cluster: MakeCluster, acks: int) -> None:
    async with cluster() as c:
        c.create(leader=1)
        cut(c, 1, 2)
        begun = asyncio.get_running_loop().time()
        assert (await c[1].produce(b"a", acks=acks)).error is ErrorCode.NONE
        assert asyncio.get_running_loop().time() == begun


@in_virtual_time
async def test_an_idle_follower_joins_when_it_is_unfenced(cluster: MakeCluster) -> None:
    """It has named its position once, while it was fenced, and has nothing new to name."""
    async with cluster() as c:
        c.fenced.add(NodeId(3))
        c.create(leader=1, isr=(1, 2))
        await c[1].produce(b"a")
        await asyncio.sleep(2)
        assert not c.alter_requests
        c.fenced.clear()
        c[1].manager.brokers_changed([NodeId(3)])
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3}, 1)


@in_virtual_time
async def test_a_follower_that_caught_up_while_another_change_was_under_way_joins_though_idle(
    cluster: MakeCluster,
) -> None:
    """Both name their position once and then nothing: the first one's change is settled by metadata, which
    comes before the controller's answer, and nothing but that news reminds the leader of the second."""
    async with cluster() as c:
        c.create(leader=1, isr=(1,), min_insync_replicas=2)
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3}, 1)
        assert len(c.alter_requests) == 2


@in_virtual_time
async def test_a_follower_that_caught_up_while_the_leader_recovered_joins_though_idle(cluster: MakeCluster) -> None:
    """After an unclean election the leader first says that it has recovered, which names the same ISR."""
    async with cluster() as c:
        c.create(leader=1, isr=(1,), min_insync_replicas=2)
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3}, 1)
        c.answer_alter = lambda node, items: AlterPartitionResponse(ErrorCode.NOT_CONTROLLER)
        manager = c[1].manager
        before = manager.isr_expands, manager.isr_shrinks
        c.change(leader=NodeId(1), isr=(1,), leader_recovery=True)
        await asyncio.sleep(1)
        assert (manager.isr_expands, manager.isr_shrinks) == before, "the same ISR neither grows nor shrinks"
        c.answer_alter = lambda node, items: None
        c.change(isr=(1,), leader_recovery=False)
        await until(lambda: set(next(iter(c.states.values())).isr) == {1, 2, 3}, 1)


@in_virtual_time
async def test_a_joining_follower_that_is_fenced_holds_nobody_up(cluster: MakeCluster) -> None:
    """It is not in the ISR, so no ISR change tells the leader: that it is not live any more must."""
    async with cluster() as c:
        c.answer_alter = lambda node, items: ConnectionLost("no controller")
        c.create(leader=1, isr=(1, 2))
        c.fenced.add(NodeId(3))
        await c[1].produce(b"a")
        await asyncio.sleep(1)
        c.fenced.clear()
        c.fabric.cut("node-3", "node-1")
        pending = c[1].begin(b"b")
        await asyncio.sleep(1)
        assert not pending.done(), "node 3 keeps up and is live: it is waited for"
        c.fenced.add(NodeId(3))
        c[1].manager.brokers_changed([NodeId(3)])
        await asyncio.sleep(0)
        assert pending.done()


@in_virtual_time
async def test_a_follower_whose_directory_failed_is_not_asked_for_and_holds_nobody_up(cluster: MakeCluster) -> None:
    """The controller has taken it out; that the follower let go of the partition the leader has not heard."""
    async with cluster() as c:
        c.create(leader=1, min_insync_replicas=2)
        assert (await c[1].produce(b"a")).error == 0
        await asyncio.sleep(1)
        key = next(iter(c.states))
        c.fabric.cut("node-3", "node-1")
        asked = len(c.alter_requests)
        c.offline.add((key, NodeId(3)))
        c.change(isr=(1, 2))
        began = asyncio.get_running_loop().time()
        assert (await c[1].produce(b"b")).error == 0
        assert asyncio.get_running_loop().time() - began < 1.0
        assert c.alter_requests[asked:] == [], "the leader asks for a replica that cannot join"


@in_virtual_time
async def test_a_broker_that_registers_anew_without_a_restart_names_everything_under_its_new_epoch(
    cluster: MakeCluster,
) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 2))
        c.answer_alter = lambda node, items: ConnectionLost("no controller")
        await c[1].produce(b"a")
        c[3].epoch = BrokerEpoch(c[3].epoch + 50)
        await asyncio.sleep(1)
        leading = c[1].leading()
        assert leading.followers[NodeId(3)].broker_epoch == c[3].epoch
        assert len(c.alter_requests) > 2
        assert len({items for _, items in c.alter_requests}) == 1, "a retry vouches for the process that was judged"
        c.answer_alter = lambda node, items: None
        await until(lambda: len(c.alter_requests) > 1)
