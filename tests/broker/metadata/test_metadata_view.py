"""The node's picture of the cluster: the calls to listeners, and pulling it over the network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping

import pytest

from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import QUEUED_MAX, MetadataView, RemoteFeed
from tidelog.metadata_quorum.image.change import MetadataDelta, apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION
from tidelog.model.ids import ControllerEpoch, NodeId, Offset
from tidelog.proto.calls.api import AlterReplicaLogDirsRequest
from tidelog.proto.calls.controller_api import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    FetchMetadataSnapshotRequest,
    FetchMetadataSnapshotResponse,
    MetadataEntry,
)
from tidelog.proto.logs.metadata_codec import encode_batch
from tidelog.proto.logs.metadata_records import FeatureLevelRecord
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Service

EPOCH = ControllerEpoch(3)


def entry(offset: int) -> MetadataEntry:
    return MetadataEntry(Offset(offset), EPOCH, encode_batch([FeatureLevelRecord(f"f{offset}", offset)]))


def image_of(*offsets: int) -> MetadataImage:
    image = MetadataImage()
    for offset in offsets:
        image, _ = apply_records(image, [FeatureLevelRecord(f"f{offset}", offset)], Offset(offset), EPOCH)
    return image


class Controller:
    """Holds committed entries; those up to ``compacted`` are in its snapshot only."""

    def __init__(self) -> None:
        self.entries: list[MetadataEntry] = []
        self.snapshot: MetadataImage | None = None
        self.asked: list[FetchMetadataRequest] = []
        self.error = ErrorCode.NONE
        self.chunk = 7

    async def fetch(self, request: FetchMetadataRequest, _: CallContext) -> FetchMetadataResponse:
        self.asked.append(request)
        if self.error is not ErrorCode.NONE:
            return FetchMetadataResponse(self.error, NodeId(2), EPOCH)
        if self.snapshot is not None and request.fetch_offset <= self.snapshot.offset:
            return FetchMetadataResponse(
                ErrorCode.NONE,
                NodeId(1),
                EPOCH,
                snapshot_offset=self.snapshot.offset,
                snapshot_epoch=self.snapshot.epoch,
            )
        found = tuple(e for e in self.entries if e.offset >= request.fetch_offset)
        if not found:
            await asyncio.sleep(0.005)
        return FetchMetadataResponse(ErrorCode.NONE, NodeId(1), EPOCH, entries=found)

    async def fetch_snapshot(
        self, request: FetchMetadataSnapshotRequest, _: CallContext
    ) -> FetchMetadataSnapshotResponse:
        assert self.snapshot is not None
        data = encode_snapshot(self.snapshot)
        chunk = data[request.position : request.position + self.chunk]
        return FetchMetadataSnapshotResponse(ErrorCode.NONE, len(data), chunk)

    def service(self) -> Service:
        return Service({FetchMetadataRequest: self.fetch, FetchMetadataSnapshotRequest: self.fetch_snapshot}, {})


class World:
    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.controllers = {NodeId(1): Controller(), NodeId(2): Controller()}
        self.addresses: Mapping[NodeId, Address] = {n: Address("c", 100 + n) for n in self.controllers}
        self.view = MetadataView()
        self.channel = ControllerChannel(
            NodeId(9), self.addresses, self.fabric.network("broker").connect, random.Random(0)
        )

    async def start(self) -> None:
        for n, controller in self.controllers.items():
            await self.fabric.network(f"c{n}").serve("CONTROLLER", self.addresses[n], controller.service())
        self.task = asyncio.ensure_future(RemoteFeed(NodeId(9), self.view, self.channel, random.Random(0)).run())

    async def reach(self, offset: int) -> None:
        assert await self.view.wait_until(lambda image: image.offset >= offset, timeout_s=10)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_listeners_hear_nothing_of_the_past_but_its_outcome() -> None:
    view = MetadataView()
    heard: list[tuple[int, bool]] = []

    def hear(image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        heard.append((image.offset, delta.features))
        return ()

    view.subscribe(hear)
    first, second = image_of(2), image_of(2, 3)
    view.publish(first, MetadataDelta(features=True))
    view.publish(second, MetadataDelta(features=True))
    assert heard == []
    view.open()
    assert heard == [(3, True)]
    view.publish(image_of(2, 3, 4), MetadataDelta())
    assert heard == [(3, True), (4, False)]


async def test_a_long_change_is_made_in_steps_and_what_comes_meanwhile_waits() -> None:
    view = MetadataView()
    done: list[str] = []

    def slowly(image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        for step in range(3):
            done.append(f"{image.offset}.{step}")
            yield

    view.subscribe(slowly)
    view.open()
    worker = asyncio.ensure_future(view.run())
    await view.wait_until(lambda image: True, timeout_s=5)
    done.clear()
    view.publish(image_of(2), MetadataDelta())
    view.publish(image_of(2, 3), MetadataDelta())
    assert done == ["2.0"], "one step at the call, the rest later"
    assert (view.image.offset, view.applied_offset) == (2, -1)
    other: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: other.append(len(done)))
    assert await view.wait_until(lambda image: image.offset == 3, timeout_s=5)
    assert done == ["2.0", "2.1", "2.2", "3.0", "3.1", "3.2"]
    assert other, "others had their turn"
    assert other[0] < 6
    assert view.applied_offset == 3
    worker.cancel()
    await asyncio.wait([worker])


async def test_too_many_waiting_images_become_one_change() -> None:
    view = MetadataView()
    heard: list[tuple[int, bool]] = []

    def slowly(image: MetadataImage, delta: MetadataDelta) -> Iterable[None]:
        heard.append((image.offset, delta.loaded))
        yield

    view.subscribe(slowly)
    view.open()
    worker = asyncio.ensure_future(view.run())
    await view.wait_until(lambda image: True, timeout_s=5)
    heard.clear()
    images = [image_of(*range(2, last)) for last in (3, 4, 5)]
    for image in images:
        view.publish(image, MetadataDelta(features=True))
    for _ in range(QUEUED_MAX):
        view.publish(images[-1], MetadataDelta(features=True))
    assert await view.wait_until(lambda image: image.offset == 4, timeout_s=5)
    assert heard[0] == (2, False)
    assert heard[1] == (4, True), "everything between is one difference"
    assert len(heard) <= 4
    worker.cancel()
    await asyncio.wait([worker])


async def test_waiting_for_an_image_has_a_bound() -> None:
    view = MetadataView()
    assert not await view.wait_until(lambda image: image.offset >= 2, timeout_s=0.01)
    waiting = asyncio.ensure_future(view.wait_until(lambda image: image.offset >= 2, timeout_s=10))
    await asyncio.sleep(0)
    view.publish(image_of(2), MetadataDelta())
    assert await waiting


@pytest.fixture
async def world() -> World:
    return World()


async def test_pulls_entries_in_order_and_waits_for_more(world: World) -> None:
    for controller in world.controllers.values():
        controller.entries = [entry(2), entry(3)]
    await world.start()
    await world.reach(3)
    for controller in world.controllers.values():
        controller.entries.append(entry(5))
    await world.reach(5)
    assert world.view.image == image_of(2, 3, 5)
    assert world.channel.leader == 1, "every answer names the leader"
    await world.stop()


async def test_loads_a_snapshot_in_pieces_and_goes_on_behind_it(world: World) -> None:
    for controller in world.controllers.values():
        controller.snapshot = image_of(2, 3, 4)
        controller.entries = [entry(5)]
    await world.start()
    await world.reach(5)
    assert world.view.image == image_of(2, 3, 4, 5)
    await world.stop()


async def test_goes_to_another_controller_when_one_is_gone_or_cannot_answer(world: World) -> None:
    for controller in world.controllers.values():
        controller.entries = [entry(2)]
    await world.start()
    await world.reach(2)
    for n, controller in world.controllers.items():
        world.fabric.drop_node(f"c{n}")
        other = world.controllers[NodeId(3 - n)]
        other.entries.append(entry(2 + n))
        controller.error = ErrorCode.NOT_CONTROLLER
        break
    await world.reach(3)
    await world.stop()


async def test_asks_only_for_what_comes_after_its_own(world: World) -> None:
    for controller in world.controllers.values():
        controller.entries = [entry(2), entry(3)]
    await world.start()
    await world.reach(3)
    for controller in world.controllers.values():
        controller.entries = [entry(2), entry(9)]
    await world.reach(9)
    assert world.view.image == image_of(2, 3, 9)
    await world.stop()


async def test_a_request_that_needs_a_level_waits_for_the_first_levels_of_a_new_cluster() -> None:
    view = MetadataView()
    asked = asyncio.create_task(view.gate_fault(AlterReplicaLogDirsRequest))
    await asyncio.sleep(0)
    assert not asked.done()
    image, delta = apply_records(view.image, [FeatureLevelRecord(METADATA_VERSION, 2)], Offset(1), EPOCH)
    view.publish(image, delta)
    assert await asyncio.wait_for(asked, 10) is None
    image, delta = apply_records(MetadataImage(), [FeatureLevelRecord(METADATA_VERSION, 1)], Offset(1), EPOCH)
    view.publish(image, delta)
    assert "expected metadata.version 2 or higher, found 1" in (await view.gate_fault(AlterReplicaLogDirsRequest) or "")
