"""What a node's TLS listeners offer to strangers: versions, ciphers, and a bounded patience with junk and dawdlers."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.security.conftest import Certificates
from tidelog.broker.kafka.server import KafkaListener
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import GrpcLimits
from tidelog.proto.transport.network import Address, Service
from tidelog.security.pem import PemSource, PemSources
from tidelog.security.tls_store import TlsRules, TlsStore
from tidelog.testing.cluster import Cluster

PATIENCE_S = 30.0
HELD_CPU_S = 0.005
"""The most processor time that one callback of the event loop may take on a stranger's behalf."""
EVERYTHING = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
WEAK = re.compile(r"NULL|RC4|DES|MD5|EXP|SEED|IDEA|CAMELLIA|ARIA|-SHA$|^(?!ECDHE-|DHE-)")
"""No encryption, broken ciphers and hashes, none that anybody asks for, none without forward secrecy."""


@pytest.fixture(scope="module")
def cluster(kept_certificates: Certificates) -> Iterator[Cluster]:
    settings = kept_certificates.settings("KAFKA CLIENT REPLICATION CONTROLLER")
    settings["http.listener"] = "HTTPS://127.0.0.1:0"
    with Cluster(nodes=1, transport="grpc", config=settings) as running:
        yield running


def kafka_listener(cluster: Cluster) -> KafkaListener:
    role = cluster.node(1).broker
    assert role is not None
    found = role._servers["KAFKA"]
    assert isinstance(found, KafkaListener)
    return found


def address_of(cluster: Cluster, listener: str) -> tuple[str, int]:
    if listener == "HTTPS":
        found = cluster.node(1).http_address
        assert found is not None
        return found.host, found.port
    (heard,) = [each for each in cluster.node_config(1).listeners if each.name == listener]
    return heard.host, heard.port


def curious() -> ssl.SSLContext:
    """A client that would take everything that OpenSSL knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers(EVERYTHING)
    context.set_alpn_protocols(["h2"])
    context.options &= ~ssl.OP_NO_COMPRESSION
    return context


def shake(address: tuple[str, int], context: ssl.SSLContext) -> tuple[str | None, str, str | None]:
    """Version, cipher and compression that were agreed on. Raises ``OSError``."""
    with socket.create_connection(address, PATIENCE_S) as plain, context.wrap_socket(plain) as secured:
        cipher = secured.cipher()
        assert cipher is not None
        return secured.version(), cipher[0], secured.compression()


# --- What is offered --------------------------------------------------------------------------------------

LISTENERS = pytest.mark.parametrize("listener", ["KAFKA", "CLIENT", "REPLICATION", "CONTROLLER", "HTTPS"])


@LISTENERS
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(cluster: Cluster, listener: str) -> None:
    address = address_of(cluster, listener)
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = curious()
        context.minimum_version, context.maximum_version = version, version
        with pytest.raises((ssl.SSLError, ConnectionError)) as caught:
            shake(address, context)
        # The client itself did offer it.
        assert getattr(caught.value, "reason", "") not in ("NO_PROTOCOLS_AVAILABLE", "NO_CIPHERS_AVAILABLE")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = curious()
        context.minimum_version, context.maximum_version = version, version
        assert shake(address, context)[::2] == (version.name.replace("_", "."), None), "and nothing is compressed"


@LISTENERS
def test_no_weak_cipher_is_accepted(cluster: Cluster, listener: str) -> None:
    address = address_of(cluster, listener)
    accepted = set()
    names = {str(found["name"]) for found in curious().get_ciphers() if found["protocol"] != "TLSv1.3"}
    assert any(map(WEAK.search, names)), "this OpenSSL has some to offer"
    for name in sorted(names):
        context = curious()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{name}:@SECLEVEL=0")
        try:
            accepted.add(shake(address, context)[1])
        except OSError:
            continue
    assert "ECDHE-ECDSA-AES128-GCM-SHA256" in accepted
    assert not [name for name in sorted(accepted) if WEAK.search(name)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here: it can ask for a renegotiation")
@LISTENERS
def test_nobody_can_ask_for_another_handshake(cluster: Cluster, listener: str) -> None:
    host, port = address_of(cluster, listener)
    asked = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-alpn", "h2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        asked.stdin.write(b"R\n")
        asked.stdin.flush()
        said = (
            asked.stdout.read()
        )  # until it ends: it has not been told to, and a handshake that works would not end it
        assert asked.wait(PATIENCE_S) != 0
    assert said.count(b"RENEGOTIATING") == 1
    assert b"depth=0" not in said.partition(b"RENEGOTIATING")[2], "it is shown no certificate again"


# --- Those that waste time ----------------------------------------------------------------------------------


def hello() -> bytes:
    """A client's first message."""
    out = ssl.MemoryBIO()
    client = curious().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_hello_that_drips_in_is_cut_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon after the one before it; the handshake as a whole takes too long."""
    monkeypatch.setattr("tidelog.broker.kafka.handshakes.TIMEOUT_S", 0.5)
    drip_into(address_of(cluster, "KAFKA"))
    handshakes = kafka_listener(cluster)._handshakes
    assert handshakes is not None
    wait_until(lambda: not handshakes.under_way, "the handshake ends")


async def test_a_grpc_listener_cuts_it_off_too(certificates: Certificates) -> None:
    own = PemSource("ssl.keystore.location", certificates.node())
    store = TlsStore(PemSources(own, own, None), TlsRules("listener CLIENT"))
    network = GrpcNetwork(GrpcLimits(handshake_ms=500), tls=lambda _: store)
    server = await network.serve("CLIENT", Address("127.0.0.1", 0), Service({}, {}))
    try:
        await asyncio.to_thread(drip_into, (server.address.host, server.address.port))
    finally:
        await server.close(0)


def drip_into(address: tuple[str, int]) -> None:
    """Send a hello, a byte at a time, until the other end hangs up."""
    deadline = time.monotonic() + PATIENCE_S
    data = hello()
    with socket.create_connection(address, PATIENCE_S) as slow:
        slow.settimeout(0.02)
        for number in range(len(data) * 100):
            assert time.monotonic() < deadline, "it is let go on"
            try:
                slow.send(data[number : number + 1] or b"\0")
                if slow.recv(100) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return


def test_junk_at_the_handshake_neither_ends_nor_holds_the_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(17)
    address = address_of(cluster, "KAFKA")
    good = hello()
    shake(address, curious())  # what is loaded at first use counts for nobody
    longest = watch_callbacks(monkeypatch)
    gc.collect()
    gc.disable()  # a collection would count for whoever is at work
    try:
        for _ in range(300):
            with socket.create_connection(address, PATIENCE_S) as stranger:
                try:
                    stranger.sendall(junk_like(good, rng))
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
                except OSError as error:  # the node hung up first
                    assert not isinstance(error, TimeoutError)
    finally:
        gc.enable()
    assert 0 < max(longest) < HELD_CPU_S
    cluster.wait_ready()  # raises what a node went down with
    assert shake(address, curious())[0] == "TLSv1.3"


def junk_like(good: bytes, rng: random.Random) -> bytes:
    data = bytearray(good)
    match rng.randrange(5):
        case 0:
            return b"\x16" + rng.randbytes(rng.randrange(1, 600))
        case 1:
            return bytes(data[: rng.randrange(1, len(data))])
        case 2:
            return bytes(data) + rng.randbytes(rng.randrange(1, 20_000))
        case 3:  # within the hello: lists of ciphers, extensions and keys, and their lengths
            for _ in range(rng.randrange(1, 20)):
                data[rng.randrange(9, len(data))] = rng.randrange(256)
            return bytes(data)
        case _:  # a record's length that promises more, or less
            data[3:5] = rng.randrange(2**16).to_bytes(2, "big")
            return bytes(data)


def watch_callbacks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Processor time of callbacks of event loops, as they run from now on."""
    taken: list[float] = [0.0]
    run = asyncio.Handle._run

    def timed(handle: Any) -> None:
        before = time.thread_time()
        run(handle)
        taken.append(time.thread_time() - before)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    return taken
