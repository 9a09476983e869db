"""The shell: leadership, loading, timers, waiting, over an offsets' log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from tests.coordinators import MemoryLog
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.state.settings import GroupSettings
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest
from tidelog.proto.calls.group_api import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupPartition,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction
from tidelog.proto.logs.coordinator_records import OffsetCommitValue, encode_offset_key, encode_offset_value
from tidelog.proto.records.encoder import encode_columns
from tidelog.proto.transport.network import CallContext

CONTEXT = CallContext("client", "ipv4:127.0.0.1:5555")
QUICK = GroupSettings(min_session_timeout_ms=20, initial_rebalance_delay_ms=0)


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"waited in vain until {what}")


async def never_asked(transaction: AddPartitionsTransaction) -> Mapping[tuple[str, int], ErrorCode]:
    raise AssertionError(f"expected no transactions, found {transaction}")


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
async def coordinator(offsets_log: MemoryLog, failures: list[BaseException]) -> AsyncIterator[GroupCoordinator]:
    made = GroupCoordinator(
        QUICK, SystemClock(), random.Random(1), offsets_log, failures.append, never_asked, partitions=1
    )
    yield made
    await made.stop()
    assert not failures


def _join(
    group: str = "g", member_id: str = "", session_ms: int = 10_000, instance: str | None = None
) -> JoinGroupRequest:
    protocols = (GroupProtocol("range", b""),)
    return JoinGroupRequest(group, session_ms, 60_000, member_id, instance, "consumer", protocols, "c")


def _commit(
    group: str = "g", offset: int = 1, partition: int = 0, member_id: str = "", generation: int = -1
) -> OffsetCommitRequest:
    item = OffsetCommitPartition("t", partition, Offset(offset))
    return OffsetCommitRequest(group, generation, member_id, None, (item,))


def _all(group: str = "g") -> OffsetFetchRequest:
    return OffsetFetchRequest((OffsetFetchGroup(group, all_partitions=True),))


async def _lead(coordinator: GroupCoordinator, offsets_log: MemoryLog, epoch: int = 1, partition: int = 0) -> None:
    coordinator.elected(partition, offsets_log.lead(partition, epoch))
    await until(lambda: coordinator.gauges().partitions_loading == 0, "it is loaded")


async def _stable(coordinator: GroupCoordinator, group: str = "g", session_ms: int = 10_000) -> str:
    asked = await coordinator.join(_join(group, session_ms=session_ms), CONTEXT)
    assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = await coordinator.join(_join(group, asked.member_id, session_ms), CONTEXT)
    assert joined.error is ErrorCode.NONE
    synced = await coordinator.sync(SyncGroupRequest(group, joined.generation_id, joined.member_id), CONTEXT)
    assert synced.error is ErrorCode.NONE
    return joined.member_id


async def _everything(coordinator: GroupCoordinator, group: str = "g") -> list[ErrorCode]:
    """The error of each call about a group that is not led here."""
    return [
        (await coordinator.join(_join(group), CONTEXT)).error,
        (await coordinator.sync(SyncGroupRequest(group, 1, "m"), CONTEXT)).error,
        (await coordinator.heartbeat(HeartbeatRequest(group, 1, "m"), CONTEXT)).error,
        (await coordinator.leave(LeaveGroupRequest(group, (LeavingMember("m"),)), CONTEXT)).error,
        (await coordinator.commit_offsets(_commit(group), CONTEXT)).results[0].error,
        (await coordinator.fetch_offsets(_all(group), CONTEXT)).groups[0].error,
        (await coordinator.delete_offsets(OffsetDeleteRequest(group, (GroupPartition("t", 0),)), CONTEXT)).error,
        (await coordinator.describe(DescribeGroupsRequest((group,)), CONTEXT)).groups[0].error,
        (await coordinator.delete_groups(DeleteGroupsRequest((group,)), CONTEXT)).results[0].error,
    ]


# --- Standing -----------------------------------------------------------------------------------------


async def test_a_partition_that_is_not_led(coordinator: GroupCoordinator) -> None:
    assert await _everything(coordinator) == [ErrorCode.NOT_COORDINATOR] * 9
    assert (await coordinator.list_groups(ListGroupsRequest(), CONTEXT)).groups == ()


async def test_a_partition_that_is_loaded(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    offsets_log.put(0, encode_columns([0], [b"\0\2\0\1h"], [None]))
    offsets_log.read_gate = asyncio.Event()
    coordinator.elected(0, offsets_log.lead(0, 1))
    errors = await _everything(coordinator)
    assert errors.pop(2) is ErrorCode.NONE  # heartbeats
    assert errors == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 8
    listed = await coordinator.list_groups(ListGroupsRequest(), CONTEXT)
    assert listed.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    offsets_log.read_gate.set()
    await until(lambda: coordinator.gauges().partitions_loaded == 1, "it is loaded")
    assert (await coordinator.join(_join(), CONTEXT)).error is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(
    ("group", "error"), [("", ErrorCode.INVALID_GROUP_ID), ("x" * 32_768, ErrorCode.INVALID_GROUP_ID)]
)
async def test_group_ids_are_judged_first(coordinator: GroupCoordinator, group: str, error: ErrorCode) -> None:
    errors = await _everything(coordinator, group)
    if not group:
        # The empty id was once a group's (KIP-289): offsets under it, and only they, are let through.
        assert [errors[at] for at in (0, 1, 2, 3, 6)] == [error] * 5
        assert [errors[at] for at in (4, 5, 7, 8)] == [ErrorCode.NOT_COORDINATOR] * 4
    else:
        assert errors == [error] * 9


async def test_a_consumer_groups_heartbeat_names_its_group(coordinator: GroupCoordinator) -> None:
    """Kafka says INVALID_REQUEST there, as for every other text that must not be empty."""
    request = ConsumerGroupHeartbeatRequest("", "m", 0)
    assert (await coordinator.consumer_heartbeat(request, CONTEXT)).error is ErrorCode.INVALID_REQUEST


async def test_loading_that_fails_is_tried_again(
    coordinator: GroupCoordinator,
    offsets_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tidelog.replication.coordinators.coordinator_shell.LOAD_AGAIN_MS", 10)
    offsets_log.put(0, encode_columns([0], [encode_offset_key("g", "t", 0)], [_value(5)]))
    offsets_log.read_refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is slow")
    coordinator.elected(0, offsets_log.lead(0, 1))
    await until(lambda: coordinator.counters.failed_loads > 0, "loading failed")
    assert (await coordinator.join(_join(), CONTEXT)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "the disk is slow" in caplog.text
    offsets_log.read_refusal = None
    await until(lambda: coordinator.gauges().partitions_loaded == 1, "it is loaded")
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets[0].offset == 5


async def test_a_damaged_batch_is_no_empty_log(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    offsets_log.put(0, encode_columns([0], [encode_offset_key("g", "t", 0)], [_value(5)]))
    stored = bytearray(offsets_log.batches[0][0])
    stored[70:] = b"\xff" * (len(stored) - 70)
    offsets_log.batches[0][0] = bytes(stored)
    coordinator.elected(0, offsets_log.lead(0, 1))
    await until(lambda: coordinator.counters.failed_loads > 0, "loading failed")
    assert (await coordinator.commit_offsets(_commit(), CONTEXT)).results[
        0
    ].error is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_resignation_while_loading(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    offsets_log.put(0, encode_columns([0], [b"\0\2\0\1h"], [None]))
    offsets_log.read_gate = asyncio.Event()
    coordinator.elected(0, offsets_log.lead(0, 1))
    await until(lambda: offsets_log.reads == 1, "it reads")
    coordinator.resigned(0, LeaderEpoch(1))
    offsets_log.read_gate.set()
    assert (await coordinator.join(_join(), CONTEXT)).error is ErrorCode.NOT_COORDINATOR
    await asyncio.sleep(0)
    assert coordinator.gauges() == ({}, 0, 0, 0, 0)


async def test_older_news_of_leadership_change_nothing(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log, epoch=5)
    coordinator.resigned(0, LeaderEpoch(4))
    coordinator.elected(0, LeaderEpoch(4))
    coordinator.elected(0, LeaderEpoch(5))
    assert (await coordinator.join(_join(), CONTEXT)).error is ErrorCode.MEMBER_ID_REQUIRED
    assert coordinator.counters.loads == 1


async def test_a_newer_election_loads_anew(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    assert (await coordinator.commit_offsets(_commit(offset=8), CONTEXT)).results[0].error is ErrorCode.NONE
    offsets_log.hold = True
    waits = coordinator.commit_offsets(_commit(offset=9), CONTEXT)
    coordinator.elected(0, offsets_log.lead(0, 2))
    assert (await waits).results[0].error is ErrorCode.NOT_COORDINATOR
    await until(lambda: coordinator.gauges().partitions_loaded == 1, "it is loaded")
    offsets_log.commit()  # of the old epoch: not heard of any longer
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets[0].offset == 9


async def test_many_records_are_loaded_in_slices(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    count = 30
    for at in range(count):
        keys = [encode_offset_key(f"g{at}", "t", partition) for partition in range(1_000)]
        offsets_log.put(0, encode_columns([0] * 1_000, keys, [_value(at)] * 1_000))
    coordinator.settings = GroupSettings(offsets_load_buffer_size=100_000)
    turns = 0
    coordinator.elected(0, offsets_log.lead(0, 1))
    while coordinator.gauges().partitions_loading:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 1_000 * count // 2_000
    assert offsets_log.reads > 5
    assert coordinator.gauges().offsets == 1_000 * count
    assert coordinator.counters.loaded_records == 1_000 * count


def _value(offset: int) -> bytes:
    return encode_offset_value(OffsetCommitValue(Offset(offset), LeaderEpoch(1), "", SystemClock().now_ms()))


# --- Groups -------------------------------------------------------------------------------------------


async def test_a_group_lives_and_moves_to_another_coordinator(
    coordinator: GroupCoordinator, offsets_log: MemoryLog, failures: list[BaseException]
) -> None:
    await _lead(coordinator, offsets_log)
    member_id = await _stable(coordinator)
    committed = await coordinator.commit_offsets(_commit(offset=7, member_id=member_id, generation=1), CONTEXT)
    assert committed.results[0].error is ErrorCode.NONE
    described = (await coordinator.describe(DescribeGroupsRequest(("g",)), CONTEXT)).groups[0]
    assert described.members[0].client_host == "/127.0.0.1"
    coordinator.resigned(0, LeaderEpoch(1))
    other = GroupCoordinator(
        QUICK, SystemClock(), random.Random(2), offsets_log, failures.append, never_asked, partitions=1
    )
    await _lead(other, offsets_log, epoch=2)
    assert (await other.heartbeat(HeartbeatRequest("g", 1, member_id), CONTEXT)).error is ErrorCode.NONE
    assert (await other.fetch_offsets(_all(), CONTEXT)).groups[0].offsets[0].offset == 7
    left = await other.leave(LeaveGroupRequest("g", (LeavingMember(member_id),)), CONTEXT)
    assert left.members[0].error is ErrorCode.NONE
    assert other.gauges().groups == {"Empty": 1}
    await other.stop()


async def test_one_timer_ends_sessions_of_all_partitions(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    coordinator.set_partition_count(8)
    for partition in range(8):
        await _lead(coordinator, offsets_log, partition=partition)
    groups = [f"group-{number}" for number in range(20)]
    assert len({coordinator.partition_for(group) for group in groups}) > 3
    for number, group in enumerate(groups):
        await _stable(coordinator, group, session_ms=30 + 5 * (number % 7))
    await until(lambda: coordinator.gauges().groups == {"Empty": 20}, "all sessions ended")
    assert coordinator.counters.expired_sessions == 20
    assert coordinator.counters.completed_rebalances == 20


async def test_a_commit_waits_for_its_record(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    offsets_log.hold = True
    waits = coordinator.commit_offsets(_commit(), CONTEXT)
    await asyncio.sleep(0)
    assert not waits.done()
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets == ()
    offsets_log.commit()
    assert (await waits).results[0].error is ErrorCode.NONE
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets[0].offset == 1


async def test_a_commit_that_is_not_replicated_in_time(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    coordinator.settings = GroupSettings(offsets_commit_timeout_ms=20)
    await _lead(coordinator, offsets_log)
    offsets_log.hold = True
    answer = await coordinator.commit_offsets(_commit(), CONTEXT)
    assert answer.results[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    offsets_log.commit()
    await until(lambda: coordinator.gauges().offsets == 1, "it counts")


async def test_a_refused_append_is_told(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    offsets_log.refuse = ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = await coordinator.commit_offsets(_commit(), CONTEXT)
    assert answer.results[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.counters.failed_appends == 1


async def test_an_append_that_hears_of_lost_leadership_resigns(
    coordinator: GroupCoordinator, offsets_log: MemoryLog
) -> None:
    await _lead(coordinator, offsets_log)
    offsets_log.lead(0, 2)  # somebody else's
    assert (await coordinator.commit_offsets(_commit(), CONTEXT)).results[0].error is ErrorCode.NOT_COORDINATOR
    assert (await coordinator.join(_join(), CONTEXT)).error is ErrorCode.NOT_COORDINATOR


async def test_requests_take_effect_in_the_order_of_the_calls(
    coordinator: GroupCoordinator, offsets_log: MemoryLog
) -> None:
    await _lead(coordinator, offsets_log)
    waits = [coordinator.commit_offsets(_commit(offset=offset), CONTEXT) for offset in range(100)]
    await asyncio.gather(*waits)
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets[0].offset == 99


async def test_whoever_asked_may_go(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    offsets_log.hold = True
    coordinator.commit_offsets(_commit(), CONTEXT).cancel()
    offsets_log.commit()
    await until(lambda: coordinator.gauges().offsets == 1, "it is committed")


async def test_groups_are_deleted_each_for_itself(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    await coordinator.commit_offsets(_commit("a"), CONTEXT)
    await _stable(coordinator, "b")
    answer = await coordinator.delete_groups(DeleteGroupsRequest(("a", "b", "c")), CONTEXT)
    assert [result.error for result in answer.results] == [
        ErrorCode.NONE,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert (await coordinator.delete_groups(DeleteGroupsRequest(()), CONTEXT)).results == ()
    assert {group.group_id for group in (await coordinator.list_groups(ListGroupsRequest(), CONTEXT)).groups} == {"b"}


async def test_offsets_of_deleted_topics_are_forgotten(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    await coordinator.commit_offsets(_commit(), CONTEXT)
    coordinator.topics_deleted(["t"])
    await until(lambda: coordinator.gauges().offsets == 0, "they are gone")


async def test_offsets_are_deleted(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    await coordinator.commit_offsets(_commit(), CONTEXT)
    request = OffsetDeleteRequest("g", (GroupPartition("t", 0), GroupPartition("t", 1)))
    answer = await coordinator.delete_offsets(request, CONTEXT)
    assert [result.error for result in answer.results] == [ErrorCode.NONE, ErrorCode.NONE]
    assert (await coordinator.fetch_offsets(_all(), CONTEXT)).groups[0].offsets == ()


# --- The end ------------------------------------------------------------------------------------------


async def test_a_stop_answers_everybody(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    coordinator.settings = GroupSettings()
    await _lead(coordinator, offsets_log)
    asked = await coordinator.join(_join(), CONTEXT)
    joining = coordinator.join(_join(member_id=asked.member_id), CONTEXT)
    offsets_log.hold = True
    committing = coordinator.commit_offsets(_commit("h"), CONTEXT)
    await coordinator.stop()
    assert joining.result().error is ErrorCode.NOT_COORDINATOR
    assert committing.result().results[0].error is ErrorCode.NOT_COORDINATOR
    coordinator.elected(0, LeaderEpoch(9))
    assert coordinator.gauges().partitions_loading == 0


async def test_a_kill_answers_nobody(coordinator: GroupCoordinator, offsets_log: MemoryLog) -> None:
    await _lead(coordinator, offsets_log)
    offsets_log.hold = True
    waits = coordinator.commit_offsets(_commit(), CONTEXT)
    coordinator.kill()
    offsets_log.commit()
    await asyncio.sleep(0.01)
    assert not waits.done()


async def test_an_append_that_raises_is_fatal(offsets_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    made = GroupCoordinator(QUICK, SystemClock(), random.Random(1), offsets_log, failures.append, never_asked)
    made.set_partition_count(1)
    await _lead(made, offsets_log)

    async def broken() -> ErrorCode:
        raise RuntimeError("a bug")

    def append(*_: object) -> Awaitable[ErrorCode]:
        return broken()

    monkeypatch.setattr(offsets_log, "append", append)
    made.commit_offsets(_commit(), CONTEXT)
    await until(lambda: bool(failures), "it is told")
    assert str(failures[0]) == "a bug"
    made.kill()
