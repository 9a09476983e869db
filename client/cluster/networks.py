"""The network that clients use unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.proto.transport.network import Network
from tidelog.security.sasl import ClientMechanism
from tidelog.security.tls_store import TlsStore


def default_network(
    tls: TlsStore | None = None, login: Callable[[], ClientMechanism] | None = None, client_id: str = ""
) -> Network:
    """Return the real network. Imported on demand, because gRPC takes a while to load. ``tls``: how connections are
    secured, ``None`` for plaintext. ``login`` starts a login, if brokers require one. ``client_id``: the name by which
    brokers know this client."""
    from tidelog.proto.transport.grpc_transport import GrpcNetwork

    return GrpcNetwork(tls=lambda _: tls, login=login, client_id=client_id)
