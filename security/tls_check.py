"""Checks that a key and its certificates work, by an in-memory handshake with themselves.

The idea comes from Kafka's ``SslFactory.SslEngineValidator``. Python's ``ssl`` cannot parse a certificate by itself; it
describes a peer's certificate once it has verified it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.listener_security import TLS_VERSIONS
from tidelog.security.distinguished_name import subject_of
from tidelog.security.pem import Material, TlsError

_VERSION_OF: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ROUNDS_MAX: Final = 10
ALPN: Final = ["h2"]
"""A gRPC client on the wrong port insists on it; Kafka and HTTP clients do without."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a certificate says."""

    subject: str
    names: frozenset[str]
    """The hosts that it is valid for, as ``DNS:a.example`` or ``IP Address:127.0.0.1``."""
    expires_s: float
    """Seconds since 1970."""


def server_context(
    material: Material, verify: ssl.VerifyMode, versions: tuple[str, ...] = TLS_VERSIONS
) -> ssl.SSLContext:
    """Return a server's context. Raises :class:`TlsError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    wanted = sorted(_VERSION_OF[version] for version in versions)
    context.minimum_version, context.maximum_version = wanted[0], wanted[-1]
    context.set_alpn_protocols(ALPN)
    _load_pair(context, material)
    if verify is not ssl.CERT_NONE:
        _load_roots(context, material.roots)
    context.verify_mode = verify
    return context


def client_context(material: Material) -> ssl.SSLContext:
    """Return a client's context that checks host names. Without roots of its own, it uses the system's. Raises
    :class:`TlsError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if material.roots:
        _load_roots(context, material.roots)
    else:
        context.load_default_certs()
    if material.chain:
        _load_pair(context, material)
    return context


def identity_of(material: Material, what: str, *, by_own_roots: bool) -> Identity:
    """Check that the key belongs to the certificate, that the certificate is valid today and, with ``by_own_roots``,
    that the trusted certificates accept it. Raises :class:`TlsError` with text that begins with ``what``."""
    try:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        if by_own_roots:
            _load_roots(client, material.roots)
        else:
            _load_roots(client, material.chain)
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        server = server_context(material, ssl.CERT_NONE)
        peer = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        accepted = "accepted by its own trusted certificates" if by_own_roots else "valid today"
        raise TlsError(f"{what}: expected a certificate that is {accepted}: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise TlsError(f"{what}: {error.reason or error}") from None
    except TlsError as error:
        raise TlsError(f"{what}: {error}") from None
    facts: Any = peer.getpeercert()
    return Identity(
        subject_of(peer.getpeercert(binary_form=True) or b""),
        frozenset(f"{kind}:{name}" for kind, name in facts.get("subjectAltName", ())),
        ssl.cert_time_to_seconds(facts["notAfter"]),
    )


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Return the client's end of a finished handshake."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(_ROUNDS_MAX):
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
        if not waiting:
            break
    return ends[0]


def _load_pair(context: ssl.SSLContext, material: Material) -> None:
    with _as_file(material.key + material.chain) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsError(
                    "expected the private key of the first certificate, found another certificate's"
                ) from None
            raise TlsError(f"expected a key and its certificates in PEM: {error.reason or error}") from None


def _load_roots(context: ssl.SSLContext, roots: bytes) -> None:
    try:
        context.load_verify_locations(cadata=roots.decode("ascii"))
    except ssl.SSLError as error:
        raise TlsError(f"expected certificates in PEM: {error.reason or error}") from None


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with this content, because Python loads keys only from files. The file is in memory if
    the system supports it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pem")
        try:
            path = f"/proc/self/fd/{fd}"
            if os.path.exists(path):
                os.write(fd, data)
                yield path
                return
        finally:
            os.close(fd)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
