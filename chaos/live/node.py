"""A node of the laboratory: the server that ``tidelog server`` runs, which dials its peers through its own proxies
and ends with the laboratory.

``python -m tidelog.chaos.live.node PARENT DETOURS --config FILE --cluster-id ID --log-file FILE``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidelog.broker.node import NodeNetwork
from tidelog.chaos.live.detours import DetouredNetwork, read_detours
from tidelog.chaos.live.leash import tie_to
from tidelog.cli.failure import CommandFailed
from tidelog.cli.server import serve


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("detours", type=Path)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--log-file", type=Path, required=True)
    asked = parser.parse_args()
    tie_to(asked.parent)
    detours = read_detours(asked.detours)

    def carrier(inner: NodeNetwork) -> NodeNetwork:
        return DetouredNetwork(inner, detours)

    try:
        return serve(asked.config, {}, asked.cluster_id, asked.log_file, "info", carrier)
    except CommandFailed as failed:
        print(failed, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
