"""The network that clients use unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.proto.transport.network import Network
from tidelog.security.sasl import ClientMechanism
from tidelog.security.tls_store import TlsStore


def default_network(
    tls: TlsStore | None = None, login: Callable[[], ClientMechanism] | None = None, client_id: str = ""
) -> Network:
    """The real network. Imported when needed, because gRPC takes a while to load. ``tls``: how its connections are
    secured, ``None`` for plaintext. ``login`` begins a login, where brokers want one. ``client_id``: the name that
    brokers know this client by."""
    from tidelog.proto.transport.grpc_transport import GrpcNetwork

    return GrpcNetwork(tls=lambda _: tls, login=login, client_id=client_id)
