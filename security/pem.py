"""Keys and certificates in PEM (RFC 7468): where they come from, and which parts a node or client uses."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE: Final = "CERTIFICATE"
_KEYS: Final = ("PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")
_ENCRYPTED: Final = "ENCRYPTED PRIVATE KEY"
_BYTES_MAX: Final = 4 * 2**20
"""A file with a system's trusted certificates has some 200 KiB."""


class TlsError(ValueError):
    """A key or certificate cannot be used. The text names, on one line, the setting and what was expected and found."""


@dataclass(frozen=True, slots=True)
class PemSource:
    """A file or literal text, and the setting that names it."""

    setting: str
    location: str | None = None
    text: str | None = None

    def read(self) -> str:
        """Return the text. Raises :class:`TlsError`."""
        if self.text is not None:
            return self.text
        assert self.location is not None
        try:
            with open(self.location, encoding="ascii", errors="replace") as file:
                return file.read(_BYTES_MAX)
        except OSError as error:
            raise TlsError(f"{self.setting}: {self.location}: {error.strerror or error}") from None

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes when the file is replaced; empty if the file does not exist."""
        if self.location is None:
            return ()
        try:
            found = os.stat(self.location)
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size

    def __str__(self) -> str:
        return f"{self.setting}: {self.location}" if self.location is not None else self.setting


class Material(NamedTuple):
    """PEM bytes, as OpenSSL and gRPC take them; empty if absent."""

    key: bytes
    chain: bytes
    roots: bytes

    def __repr__(self) -> str:
        return f"Material({len(self.chain)} and {len(self.roots)} bytes of certificates)"


@dataclass(frozen=True, slots=True)
class PemSources:
    """Where a node or client finds its key, its certificate chain, and the certificates that it trusts."""

    key: PemSource | None
    chain: PemSource | None
    """The same file as the key, or another."""
    roots: PemSource | None
    """None: the system's."""

    def read(self) -> Material:
        """Read them all. Raises :class:`TlsError`."""
        key = b"" if self.key is None else _key(self.key)
        chain = b"" if self.chain is None else _certificates(self.chain)
        return Material(key, chain, b"" if self.roots is None else _certificates(self.roots))

    def stamps(self) -> tuple[tuple[int, ...], ...]:
        """See :meth:`PemSource.stamp`."""
        return tuple(() if source is None else source.stamp() for source in (self.key, self.chain, self.roots))


def _key(source: PemSource) -> bytes:
    blocks = _BLOCK.findall(source.read())
    keys = [(label, body) for label, body in blocks if label in _KEYS]
    if any(label == _ENCRYPTED or "ENCRYPTED" in body for label, body in blocks):
        raise TlsError(
            f"{source}: expected a key that is not encrypted, found an encrypted one; "
            "`openssl pkey -in encrypted.pem -out key.pem` decrypts it"
        )
    if len(keys) != 1:
        raise TlsError(f"{source}: expected one private key in PEM, found {len(keys)}")
    return _block(*keys[0])


def _certificates(source: PemSource) -> bytes:
    found = [_block(label, body) for label, body in _BLOCK.findall(source.read()) if label == _CERTIFICATE]
    if not found:
        raise TlsError(f"{source}: expected certificates in PEM, found none")
    return b"".join(found)


def _block(label: str, body: str) -> bytes:
    """Return a block with line ends, which a one-line configuration value lacks."""
    data = "".join(body.split())
    lines = [data[at : at + 64] for at in range(0, len(data), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", "")).encode("ascii", "replace")
