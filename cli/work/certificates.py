"""The files of a private certificate authority, as ``tidelog security`` stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import write_private
from tidelog.security.authority import Authority

CA_KEY: Final = "ca-key.pem"
CA: Final = "ca.pem"


def load(directory: Path) -> Authority:
    """Load the authority that :func:`save` stored. Raises :class:`CommandFailed`."""
    try:
        return Authority.read((directory / CA_KEY).read_text(), (directory / CA).read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{directory}: expected {CA_KEY} and {CA} of an authority: {error}") from None


def save(authority: Authority, directory: Path) -> None:
    """Write key and certificate."""
    write_private(directory / CA_KEY, authority.key_pem)
    write_private(directory / CA, authority.pem)
