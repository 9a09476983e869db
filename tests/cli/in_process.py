"""Runs commands of the program ``tidelog`` in this process, and returns their output."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import until as until
from tidelog.cli.root import run

Result = tuple[int, str, str]
"""Exit code, stdout, stderr."""
Tidelog = Callable[..., Result]
AsyncTidelog = Callable[..., Awaitable[Result]]


def runs_commands(bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    """Runs one command for that cluster."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", bootstrap)

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = run(arguments)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return code, out, err

    return call


def beside_the_loop(tidelog: Tidelog, *first: str) -> AsyncTidelog:
    """The same on a thread, for tests with a cluster on their own loop; ``first``: what each command begins with."""

    async def call(*arguments: str) -> Result:
        return await asyncio.to_thread(tidelog, *first, *arguments)

    return call


def as_json(result: Result) -> Any:
    code, out, err = result
    assert code == 0, err
    return json.loads(out)
