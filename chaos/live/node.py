"""A node of the laboratory: the server that ``tidelog server`` runs, which dials its peers through its own proxies
and ends with the laboratory.

``python -m tidelog.chaos.live.node PARENT DETOURS [--mutant ID] --config FILE --cluster-id ID --log-file FILE``

With ``--mutant`` one rule of the node is broken, as the simulation breaks it to see whether it is caught
(:mod:`tidelog.chaos.sim.mutants`). A mutant is installed before what it changes is imported, hence the imports below.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.chaos.live.leash import tie_to

if TYPE_CHECKING:
    from tidelog.broker.node import NodeNetwork


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("detours", type=Path)
    parser.add_argument("--mutant", default="")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--log-file", type=Path, required=True)
    asked = parser.parse_args()
    tie_to(asked.parent)
    if asked.mutant:
        from tidelog.chaos.sim.mutants import ALL
        from tidelog.chaos.sim.mutants.hook import install

        install(next(mutant for mutant in ALL if mutant.id == asked.mutant))

    from tidelog.chaos.disk.real_time import tell_real_time
    from tidelog.chaos.live.detours import DetouredNetwork, read_detours
    from tidelog.cli.failure import CommandFailed
    from tidelog.cli.server import serve

    tell_real_time()
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
