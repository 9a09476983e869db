"""Drains a broker like an operator who repeats ``tidelog brokers drain`` until it succeeds.

A program: ``python -m tidelog.chaos.laboratory.processes.draining NODE BYTES_PER_SECOND``. The user's profile names the
cluster. Exit code 0 once nothing is left on the broker; an interrupt ends it, and the moves in progress continue.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from tidelog.cli.failure import EXIT_INTERRUPTED
from tidelog.cli.root import run

AGAIN_S: Final = 0.5


def main() -> int:
    node, rate = sys.argv[1:]
    while code := run(["brokers", "drain", node, "--throttle", rate, "--at-once", "2"]):
        if code == EXIT_INTERRUPTED:
            return code
        sys.stderr.flush()
        time.sleep(AGAIN_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
