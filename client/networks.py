"""The network that clients use unless told otherwise."""

from __future__ import annotations

from tidelog.proto.network import Network


def default_network() -> Network:
    """The real one. Imported when needed: gRPC takes a while to load."""
    from tidelog.proto.grpc_transport import GrpcNetwork

    return GrpcNetwork()
