"""Real processes behind a real toxiproxy: every link runs through it, a cut cuts what it says, and nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.chaos.laboratory.links.connections import connections, past_proxies
from tidelog.chaos.laboratory.links.detours import NoDetour
from tidelog.chaos.laboratory.links.links import Impairment, Links, Route, Way, both
from tidelog.chaos.laboratory.links.proxy_server import ProxyServer
from tidelog.chaos.laboratory.links.toxiproxy_build import VERSION
from tidelog.chaos.laboratory.processes.laboratory import CONTROLLER, Laboratory
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.process import mark_of
from tidelog.proto.transport.network import Address
from tidelog.testing import ports

pytestmark = pytest.mark.timeout(600)  # the first test of a machine builds the server


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


# --- the links of a cluster ---------------------------------------------------------------------------


def test_no_connection_goes_past_the_proxies(laboratory: Laboratory) -> None:
    nodes = laboratory.cluster.nodes.values()
    with Admin(laboratory.bootstrap) as admin, Producer(laboratory.bootstrap) as producer:
        admin.create_topics([NewTopic("t", 6, 3)])
        for number in range(600):
            producer.send("t", b"%d" % number, partition=number % 6)
        producer.flush(20)
        with Producer(laboratory.bootstrap, transactional_id="t") as other:
            other.init_transactions()
            with other.transaction():
                other.send("t", b"in a transaction", partition=0)
        with Consumer(laboratory.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            wait_for("records", lambda: bool(consumer.poll(0.5)))
        listening = {
            node.pid or 0: {node.ports.client, node.ports.replication, node.ports.controller, node.ports.kafka}
            for node in nodes
        }
        assert past_proxies(listening) == []
        # And it would have been seen: each node has connections to proxies, and the proxies have some to each node.
        own = {route.listen.port for route in laboratory.links.routes}
        for node in nodes:
            dialled = {link.remote_port for link in connections([node.pid or 0])} & own
            assert {route.target for route in laboratory.links.routes if route.listen.port in dialled} == {
                other.node_id for other in nodes if other is not node
            }
        server = laboratory.server.pid
        assert server is not None
        reached = {link.remote_port for link in connections([server])}
        for ports_of_one in listening.values():
            assert reached & ports_of_one
        # This process is a client, and knows proxies alone.
        mine = {link.remote_port for link in connections([os.getpid()])}
        assert mine & own
        assert not mine & {port for those in listening.values() for port in those}


def test_a_node_that_is_cut_off_loses_its_leaderships_and_comes_back(laboratory: Laboratory) -> None:
    # A leader that is cut off from the others does not know it, and keeps a producer waiting for request_timeout_ms.
    with Admin(laboratory.bootstrap) as admin, Producer(laboratory.bootstrap, request_timeout_ms=1_000) as producer:
        admin.create_topics([NewTopic("cut", 1, 3)])
        producer.send("cut", b"before").result(20)

        def leader() -> int:
            return admin.describe_topics(["cut"])[0].partitions[0].leader

        first = leader()
        others = [node for node in laboratory.node_ids if node != first]
        for other in others:
            laboratory.links.impair("cut", both(first, other), Impairment("cut"))
        wait_for("another leader", lambda: leader() in others)
        producer.send("cut", b"meanwhile").result(20)
        laboratory.links.heal("cut")
        wait_for("all in sync", lambda: len(admin.describe_topics(["cut"])[0].partitions[0].isr) == 3)
        laboratory.links.heal_all()


def test_only_controllers_can_be_cut_off_from_one_another(laboratory: Laboratory) -> None:
    """Without a controller in reach of a majority what leads goes on, and nothing new is decided."""
    with Admin(laboratory.bootstrap) as admin, Producer(laboratory.bootstrap) as producer:
        admin.create_topics([NewTopic("goes-on", 3, 3)])
        producer.send("goes-on", b"before", partition=0).result(20)
        nodes = laboratory.node_ids
        ways = [way for a in nodes for b in nodes if a < b for way in both(a, b)]
        laboratory.links.impair("quorum", ways, Impairment("cut"), frozenset({CONTROLLER}))
        producer.send("goes-on", b"meanwhile", partition=0).result(20)
        with pytest.raises(Exception, match=r"."):
            admin.create_topics([NewTopic("not-now", 1, 3)], timeout=3)
        laboratory.links.heal("quorum")
        wait_for("a controller", lambda: admin.describe_cluster().controller_id in nodes)
        admin.create_topics([NewTopic("again", 1, 3)], timeout=20)


def test_a_cluster_of_an_address_that_no_proxy_stands_for_is_refused() -> None:
    from tidelog.chaos.laboratory.links.detours import DetouredNetwork
    from tidelog.proto.transport.grpc_transport import GrpcNetwork

    known, led = Address("127.0.0.1", 20_001), Address("127.0.0.1", 20_002)
    network = DetouredNetwork(GrpcNetwork(), {known: led})
    assert network.connect(known).address == known
    with pytest.raises(NoDetour, match=r"found 127\.0\.0\.1:20003"):
        network.connect(Address("127.0.0.1", 20_003))


# --- what an impairment does to bytes ------------------------------------------------------------------


class Echo:
    """Says back what it hears, behind a proxy."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            try:
                while said := peer.recv(65_536):
                    peer.sendall(said)
            except OSError:
                pass

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


Wire = tuple[Links, Callable[[], socket.socket]]


@pytest.fixture
def wire(laboratory: Laboratory) -> Iterator[Wire]:
    """A link of end 7 to an echo that is end 8, and what dials it."""
    echo = Echo()
    listen = Address("127.0.0.1", ports.free_ports(1)[0])
    links = Links(laboratory.server, [Route(7, 8, f"ECHO{echo.address.port}", listen, echo.address)])
    links.open()
    dialled: list[socket.socket] = []

    def dial() -> socket.socket:
        dialled.append(socket.create_connection(listen, timeout=5.0))
        return dialled[-1]

    yield links, dial
    for each in dialled:
        each.close()
    links.heal_all()
    echo.close()


def says(peer: socket.socket, text: bytes, within_s: float = 5.0) -> bytes:
    """The echo of what is sent: nothing within the time is ``b"-"``, the end is ``b""``."""
    peer.settimeout(within_s)
    try:
        peer.sendall(text)
        return peer.recv(65_536)
    except TimeoutError:
        return b"-"
    except OSError:
        return b""


@pytest.mark.parametrize("way", [Way(7, 8), Way(8, 7)])
def test_what_is_cut_is_lost_and_its_connection_closed_when_it_heals(wire: Wire, way: Way) -> None:
    links, dial = wire
    peer = dial()
    assert says(peer, b"before") == b"before"
    links.impair("a", [way], Impairment("cut"))
    assert says(peer, b"lost", 0.3) == b"-"
    links.heal("a")
    assert says(peer, b"after") == b""
    assert says(dial(), b"anew") == b"anew"


@pytest.mark.parametrize("way", [Way(7, 8), Way(8, 7)])
def test_what_is_held_arrives_when_it_heals(wire: Wire, way: Way) -> None:
    links, dial = wire
    peer = dial()
    assert says(peer, b"before") == b"before"
    links.impair("a", [way], Impairment("hold"))
    assert says(peer, b"held", 0.3) == b"-"
    links.heal("a")
    peer.settimeout(5.0)
    assert peer.recv(100) == b"held"


def test_the_other_direction_of_a_cut_goes_on(wire: Wire) -> None:
    """What the echo was told before the cut of its hearing comes back all the same."""
    links, dial = wire
    peer = dial()
    links.impair("a", [Way(8, 7)], Impairment("hold"))
    assert says(peer, b"heard", 0.3) == b"-"  # the echo has heard it, and its answer is held
    links.impair("b", [Way(7, 8)], Impairment("cut"))
    links.heal("a")
    peer.settimeout(5.0)
    assert peer.recv(100) == b"heard"


def test_latency_throttle_and_limit(wire: Wire) -> None:
    links, dial = wire
    links.impair("a", both(7, 8), Impairment("latency", ms=150))
    began = time.monotonic()
    assert says(dial(), b"slow") == b"slow"
    assert time.monotonic() - began >= 0.3
    links.heal("a")
    links.impair("a", [Way(7, 8)], Impairment("throttle", rate=20))
    peer, got, began = dial(), 0, time.monotonic()
    peer.sendall(bytes(10_000))
    while got < 10_000:
        got += len(peer.recv(65_536))
    assert time.monotonic() - began >= 0.4
    links.heal("a")
    links.impair("a", [Way(8, 7)], Impairment("limit", bytes=5))
    assert says(dial(), b"0123456789") == b"01234"


def test_refuse_reset_and_loss(wire: Wire) -> None:
    links, dial = wire
    peer = dial()
    assert says(peer, b"x") == b"x"
    links.impair("a", [Way(7, 8)], Impairment("refuse"))
    assert says(peer, b"x") == b""
    with pytest.raises(ConnectionRefusedError):
        dial()
    links.heal("a")
    links.impair("a", [Way(7, 8)], Impairment("reset"))
    assert says(dial(), b"x") == b""
    links.heal("a")
    links.impair("a", [Way(7, 8)], Impairment("loss", share=0.5))
    heard = [says(dial(), b"x", 0.1) for _ in range(40)]
    assert 5 < heard.count(b"x") < 35
    assert heard.count(b"-") == 40 - heard.count(b"x")


# --- what is in the way, and what is left --------------------------------------------------------------


def test_a_taken_port_is_named(toxiproxy: Path, tmp_path: Path) -> None:
    import random

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandFailed, match=f"toxiproxy: port {port} of 127.0.0.1 is taken by another program"):
            ProxyServer(toxiproxy, tmp_path / "log", random.Random(1), port).start()


def test_a_port_that_was_taken_since_it_was_chosen_is_named(toxiproxy: Path, tmp_path: Path) -> None:
    made = Laboratory.laid_out(tmp_path / "it", toxiproxy, nodes=1, settings=None, seed=1)
    port = made.links.routes[-1].listen.port
    made.server.start()
    try:
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(CommandFailed, match=rf"port {port} of .* was taken .*; start again"),
        ):
            made.links.open()
    finally:
        made.end()


def test_a_server_of_another_version_is_refused(tmp_path: Path) -> None:
    import random

    other = tmp_path / "other"
    other.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent(
            """\
            import sys
            from http.server import BaseHTTPRequestHandler, HTTPServer
            class Answer(BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b'{"version": "2.1.0"}')
            HTTPServer(("127.0.0.1", int(sys.argv[4])), Answer).serve_forever()
            """
        )
    )
    other.chmod(0o755)
    server = ProxyServer(other, tmp_path / "log", random.Random(1))
    with pytest.raises(CommandFailed, match=f"expected version {VERSION}, found 2.1.0"):
        server.start()
    assert server.pid is None


def test_every_process_ends_with_the_laboratory_even_one_that_stands_still(toxiproxy: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""\
        import signal, time
        from pathlib import Path
        from tidelog.chaos.laboratory.processes.laboratory import Laboratory
        with Laboratory.running(Path({str(tmp_path / "lab")!r}), Path({str(toxiproxy)!r}), nodes=1) as laboratory:
            node = laboratory.cluster.nodes[1]
            print(node.pid, laboratory.server.pid, flush=True)
            laboratory.cluster.pause(1)
            time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pids = [int(pid) for pid in started.stdout.readline().split()]
        marks = [mark_of(pid) for pid in pids]
        assert len(marks) == 2
        assert all(marks)
        started.send_signal(signal.SIGKILL)
        started.wait(10)
    wait_for("both to end", lambda: not any(mark is not None and mark_of(mark.pid) == mark for mark in marks), 10)
