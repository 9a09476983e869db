"""A peer that is too far away for the first attempt to connect, or too busy, is reached by a later one."""

from __future__ import annotations

import asyncio

import pytest

from tests.security.conftest import Certificates
from tests.slow_link import SlowLink
from tidelog.model.ids import NodeId
from tidelog.proto.calls import api
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, CallContext, ConnectionLost, Service
from tidelog.security.pem import PemSource, PemSources
from tidelog.security.tls_store import TlsRules, TlsStore

PATIENCE_S = 30


async def metadata(request: api.MetadataRequest, context: CallContext) -> api.MetadataResponse:
    return api.MetadataResponse(cluster_id="far", controller_id=NodeId(1), brokers=(), topics=())


@pytest.mark.parametrize("encrypted", [False, True], ids=["plaintext", "tls"])
async def test_a_far_peer_is_reached(
    encrypted: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.proto.transport.grpc_calling._CONNECT_MS", 100)
    own = PemSource("ssl.keystore.location", certificates.node())
    roots = PemSource("ssl.truststore.location", certificates.roots)
    store = TlsStore(PemSources(own, own, roots), TlsRules("listener CLIENT")) if encrypted else None
    network = GrpcNetwork(tls=lambda _: store)
    server = await network.serve("CLIENT", Address("127.0.0.1", 0), Service({api.MetadataRequest: metadata}, {}))
    link = SlowLink(lambda: server.address.port)
    if encrypted:
        link.delay_s = 0.25
    else:  # the node greets whoever connects, before it hears anything
        link.bytes_per_s = 200
    connection = network.connect(Address("127.0.0.1", link.port))
    failed: list[str] = []
    try:
        while True:
            try:
                answer = await connection.call(api.MetadataRequest(topics=("t",)), timeout_s=PATIENCE_S)
                break
            except ConnectionLost as lost:
                assert len(failed) < 10, lost
                failed.append(str(lost))
                await asyncio.sleep(0.1)
        assert answer.cluster_id == "far"
        assert all("did not greet in time" in one for one in failed)
        assert failed
    finally:
        await connection.close()
        await server.close(0)
        link.close()
