"""What tests of every folder use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import pytest

_LISTEN: Final = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def interruptible() -> Callable[[Sequence[str]], list[str]]:
    """Makes of a command one that an interrupt reaches: who runs the tests in the background has SIGINT ignored, and
    so would the command. (``preexec_fn`` would fork this process, amid the calls of gRPC's threads: a child may hang.)
    """
    return lambda command: [sys.executable, "-S", "-c", _LISTEN, *command]
