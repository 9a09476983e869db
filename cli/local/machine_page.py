"""Merges the metrics pages of a machine's workers into one. Pure; source: Prometheus's text format 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

LABEL: Final = "node_id"
"""Tells the series of one worker from those of another."""
UP: Final = "tidelog_worker_up"
_NAME: Final = re.compile(rb"[a-zA-Z_:][\w:]*")


def merged(pages: Mapping[int, bytes | None]) -> bytes:
    """Return one page: every series with its node's id as a label, each family once, and which workers answered.

    ``pages``: by node id; ``None`` for a worker that did not answer.
    """
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for node, page in sorted(pages.items()):
        label = f'{LABEL}="{node}"'.encode()
        told, samples = families.setdefault(b"", ([], []))
        for line in (page or b"").splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                told, samples = families.setdefault(line.split(b" ", 3)[2], ([], []))
                if line.split(b" ", 2)[1] not in {one.split(b" ", 2)[1] for one in told}:
                    told.append(line)
            elif line and not line.startswith(b"#") and (name := _NAME.match(line)) is not None:
                rest = line[name.end() :]
                inside = rest[1:] if rest.startswith(b"{") else b"}" + rest
                comma = b"" if inside.startswith(b"}") else b","
                samples.append(name.group() + b"{" + label + comma + inside)
    lines = [line for family in families.values() for part in family for line in part]
    lines += [f"# HELP {UP} Whether the worker answered this scrape.".encode(), f"# TYPE {UP} gauge".encode()]
    lines += [f'{UP}{{{LABEL}="{node}"}} {int(page is not None)}'.encode() for node, page in sorted(pages.items())]
    return b"\n".join(lines) + b"\n"
