"""Starting a node: directories, ports and ids that are not its own are refused in one clear line."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tidelog.broker.node.node import Node, NodeRefused
from tidelog.model.clock import SystemClock
from tidelog.model.ids import id_text, random_id
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address
from tidelog.storage.disk.format import read_meta
from tidelog.testing.async_cluster import AsyncCluster
from tidelog.testing.killable_files import KillableFiles

Start = Callable[..., Awaitable[Node]]


class Starter:
    """Starts single nodes over one in-memory fabric and kills what is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fabric = MemoryFabric()
        self.running: list[tuple[Node, KillableFiles]] = []
        self.fatal: list[str] = []

    def config(self, **settings: str) -> NodeConfig:
        values = {
            "node.id": "1",
            "listeners": "CLIENT://n1:9092,REPLICATION://n1:9093,CONTROLLER://n1:9094",
            "log.dirs": str(self.directory / "data"),
            "http.listener": "",
        }
        values.update({name.replace("_", "."): value for name, value in settings.items()})
        return NodeConfig.parse(values)

    async def start(
        self, config: NodeConfig, cluster_id: str | None = None, name: str = "n", *, formats: bool = False
    ) -> Node:
        files = KillableFiles()
        node = Node(
            config,
            network=self.fabric.network(f"{name}{config.node_id}"),
            files=files,
            clock=SystemClock(),
            rng=random.Random(6 + config.node_id),
            cluster_id=cluster_id,
            formats=formats,
            on_fatal=lambda what, error: self.fatal.append(what),
        )
        self.running.append((node, files))
        await node.start()
        return node

    async def kill_all(self) -> None:
        for node, files in self.running:
            node.drop()
            files.kill()
            await node.kill()
        self.running.clear()


@pytest.fixture
async def starter(tmp_path: Path) -> AsyncIterator[Starter]:
    made = Starter(tmp_path)
    yield made
    await made.kill_all()


async def test_a_metadata_disk_that_is_not_mounted_is_an_error_and_nothing_is_made_of_it(starter: Starter) -> None:
    disks = [starter.directory / name for name in ("metadata", "one", "two")]
    config = starter.config(log_dirs=f"{disks[1]},{disks[2]}", metadata_log_dir=str(disks[0]))
    await starter.start(config)
    await starter.kill_all()
    mounted = disks[0].rename(starter.directory / "elsewhere")
    disks[0].mkdir()
    with pytest.raises(
        NodeRefused, match=r"metadata: expected this node's metadata log, as .*one is formatted.*--format"
    ):
        await starter.start(config)
    assert list(disks[0].iterdir()) == []
    await starter.kill_all()
    disks[0].rmdir()
    mounted.rename(disks[0])
    await starter.start(config)
    await starter.kill_all()
    shutil.rmtree(disks[0])
    await starter.start(config, formats=True)


async def test_a_lone_node_formats_its_empty_directory_and_finds_it_again(starter: Starter) -> None:
    first = await starter.start(starter.config())
    meta = read_meta(KillableFiles(), str(starter.directory / "data"))
    assert meta is not None
    assert (meta.cluster_id, meta.node_id) == (first.cluster_id, 1)
    await first.stop()
    starter.running.clear()
    again = await starter.start(starter.config())
    assert again.cluster_id == first.cluster_id


async def test_one_of_several_controllers_does_not_make_up_a_cluster(starter: Starter) -> None:
    config = starter.config(controller_quorum_voters="1@n1:9094,2@n2:9094,3@n3:9094")
    with pytest.raises(NodeRefused, match="formatted for a cluster"):
        await starter.start(config)


async def test_a_node_that_waits_for_its_quorum_says_so_on_its_pages(starter: Starter) -> None:
    cluster_id = id_text(random_id(random.Random(1)))

    def start(node_id: int) -> asyncio.Task[Node]:
        config = starter.config(
            node_id=str(node_id),
            listeners=f"CLIENT://n{node_id}:9092,REPLICATION://n{node_id}:9093,CONTROLLER://n{node_id}:9094",
            controller_quorum_voters="1@n1:9094,2@n2:9094",
            log_dirs=str(starter.directory / str(node_id)),
            http_listener="HTTP://127.0.0.1:0",
        )
        return asyncio.ensure_future(starter.start(config, cluster_id))

    first = start(1)
    async with asyncio.timeout(100):
        while not (starter.running and starter.running[0][0].http_address):
            await asyncio.sleep(0.01)
    address = starter.running[0][0].http_address
    assert address is not None
    for path in ("/health", "/ready"):
        status, text = await page(address, path)
        assert status == 503
        assert text.startswith("waiting: its directory ")
        assert text.endswith("once all of its controllers (1, 2) have been started; no stream to 2 yet\n")
    assert "\nkafka_server_raft_metrics_number_of_voters 0.0\n" in (await page(address, "/metrics"))[1]
    assert not first.done()
    await start(2)
    await first
    status, text = await page(address, "/health")
    assert (status, text.splitlines()[0]) == (200, "alive"), "more lines are findings, e.g. a nearly full disk"
    assert await page(address, "/ready") == (200, "ready\n")


async def page(address: Address, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(100):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_a_directory_of_another_cluster_is_refused(starter: Starter) -> None:
    first = await starter.start(starter.config())
    await starter.kill_all()
    other = id_text(random_id(random.Random(1)))
    with pytest.raises(NodeRefused, match=f"expected a directory of cluster {other}, found one of cluster") as refused:
        await starter.start(starter.config(), other)
    assert first.cluster_id in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_directory_of_another_node_is_refused(starter: Starter) -> None:
    await starter.start(starter.config())
    await starter.kill_all()
    with pytest.raises(NodeRefused, match="expected a directory of node 2, found one of node 1"):
        await starter.start(starter.config(node_id="2"))


async def test_a_directory_with_something_else_in_it_is_not_formatted(starter: Starter) -> None:
    data = starter.directory / "data"
    data.mkdir()
    (data / "holiday.jpg").write_bytes(b"!")
    with pytest.raises(NodeRefused, match=r"expected an empty directory .* found holiday\.jpg"):
        await starter.start(starter.config())
    assert [found.name for found in data.iterdir()] == ["holiday.jpg"]


async def test_a_directory_in_use_is_refused(starter: Starter) -> None:
    await starter.start(starter.config())
    with pytest.raises(NodeRefused, match="in use by another process"):
        await starter.start(starter.config(), name="other")


async def test_a_taken_port_is_named(starter: Starter) -> None:
    await starter.start(starter.config())
    config = starter.config(log_dirs=str(starter.directory / "other"))
    with pytest.raises(OSError, match="9094"):
        await starter.start(config, name="other")


async def test_a_taken_http_port_is_named(starter: Starter) -> None:
    first = await starter.start(starter.config(http_listener="HTTP://127.0.0.1:0"))
    assert first.http_address is not None
    config = starter.config(
        listeners="CLIENT://n2:9092,CONTROLLER://n2:9094",
        log_dirs=str(starter.directory / "other"),
        http_listener=f"HTTP://{first.http_address}",
    )
    with pytest.raises(OSError, match=f"{first.http_address.port}"):
        await starter.start(config, name="other")


async def test_a_taken_node_id_is_refused_and_the_holder_goes_on() -> None:
    async with AsyncCluster(2, controllers=1, config={"broker.session.timeout.ms": "300"}) as cluster:
        thief = Starter(cluster.node_directory(1).parent.parent / "thief")
        thief.fabric = cluster.fabric
        config = thief.config(
            node_id="2",
            process_roles="broker",
            listeners="CLIENT://thief:1,REPLICATION://thief:2",
            controller_quorum_voters=f"1@{cluster.node_config(1).voters[0].host}:{cluster.node_config(1).voters[0].port}",
            broker_session_timeout_ms="300",
        )
        with pytest.raises(NodeRefused, match="DUPLICATE_BROKER_REGISTRATION"):
            await thief.start(config, cluster.cluster_id, name="thief")
        await thief.kill_all()
        await cluster.wait_ready()
        await cluster.create_topic("t", 2, 2)


async def test_no_controller_in_reach_is_said_after_the_bound(starter: Starter) -> None:
    config = starter.config(
        process_roles="broker",
        listeners="CLIENT://n1:9092,REPLICATION://n1:9093",
        controller_quorum_voters="9@nowhere:9094",
        initial_broker_registration_timeout_ms="300",
    )
    with pytest.raises(NodeRefused, match=r"no controller of 9@nowhere:9094 admitted node 1 within 0\.3 s"):
        await starter.start(config, id_text(random_id(random.Random(1))))


async def test_a_wrong_cluster_id_at_a_broker_is_refused_by_the_controller() -> None:
    async with AsyncCluster(1) as cluster:
        stranger = Starter(cluster.node_directory(1).parent.parent / "stranger")
        stranger.fabric = cluster.fabric
        voter = cluster.node_config(1).voters[0]
        config = stranger.config(
            node_id="5",
            process_roles="broker",
            listeners="CLIENT://stranger:1,REPLICATION://stranger:2",
            controller_quorum_voters=f"1@{voter.host}:{voter.port}",
        )
        with pytest.raises(NodeRefused, match="INCONSISTENT_CLUSTER_ID"):
            await stranger.start(config, id_text(random_id(random.Random(2))), name="stranger")
        await stranger.kill_all()


async def test_controllers_and_brokers_apart(tmp_path: Path) -> None:
    fabric = MemoryFabric()
    starter = Starter(tmp_path)
    starter.fabric = fabric
    cluster_id = id_text(random_id(random.Random(3)))
    controller = starter.config(
        process_roles="controller", listeners="CONTROLLER://n1:9094", log_dirs=str(tmp_path / "controller")
    )
    broker = starter.config(
        node_id="2",
        process_roles="broker",
        listeners="CLIENT://n2:9092",
        controller_quorum_voters="1@n1:9094",
        log_dirs=str(tmp_path / "broker"),
    )
    try:
        broker_starts = asyncio.ensure_future(starter.start(broker, cluster_id))
        controller_node = await starter.start(controller, cluster_id)
        node = await broker_starts
        assert node.standing is not None
        assert controller_node.standing is None
        assert controller_node.is_active_controller
        assert not node.is_active_controller
        assert node.active_controller == 1
        await node.stop()
        await controller_node.stop()
        starter.running.clear()
        assert starter.fatal == []
    finally:
        await starter.kill_all()


async def test_a_background_task_that_ends_takes_the_node_down(starter: Starter) -> None:
    node = await starter.start(starter.config())

    async def end() -> None:
        await asyncio.sleep(0)

    node._supervisor.run("chore", end())
    async with asyncio.timeout(5):
        while not starter.fatal:
            await asyncio.sleep(0.001)
    assert "chore" in starter.fatal[0]
    assert node.failure == starter.fatal[0]
