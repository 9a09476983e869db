"""The exit code says how it went, whatever becomes of the output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which Linux has")
def test_output_that_cannot_be_written_does_not_become_pythons_own_exit_code() -> None:
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "wb") as full:
        program = (
            "from tidelog.cli import main, root\n"
            "def failing(arguments):\n    print('held in the buffer')\n    return 1\n"
            "root.run = failing\nmain.main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, timeout=240, env=buffered
        )
    assert done.returncode == 1, done.stderr
