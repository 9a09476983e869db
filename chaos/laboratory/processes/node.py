"""A node of the laboratory: the server of ``tidelog server``, but it dials its peers through its own proxies and ends
with the laboratory.

``python -m tidelog.chaos.laboratory.processes.node PARENT DETOURS [--mutant ID] [--add-scram @FILE]
--config FILE --cluster-id ID --log-file FILE``

With ``--mutant`` one rule of the node is broken, in the same way as in the simulation, to see whether the break is
detected (:mod:`tidelog.chaos.simulated.mutants`). A mutant is installed before the code that it changes is imported,
hence the imports below.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.chaos.laboratory.processes.parent_death import tie_to

if TYPE_CHECKING:
    from tidelog.broker.node.node import NodeNetwork


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("detours", type=Path)
    parser.add_argument("--mutant", default="")
    parser.add_argument("--add-scram", action="append", default=[])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--log-file", type=Path, required=True)
    asked = parser.parse_args()
    tie_to(asked.parent)
    if asked.mutant:
        from tidelog.chaos.simulated.mutants import ALL
        from tidelog.chaos.simulated.mutants.hook import install

        install(next(mutant for mutant in ALL if mutant.id == asked.mutant))

    from tidelog.chaos.disk.real_time import tell_real_time
    from tidelog.chaos.laboratory.links.detours import DetouredNetwork, read_detours
    from tidelog.cli.commands.nodes.server import serve
    from tidelog.cli.failure import CommandFailed

    tell_real_time()
    detours = read_detours(asked.detours)

    def carrier(inner: NodeNetwork) -> NodeNetwork:
        return DetouredNetwork(inner, detours)

    try:
        return serve(
            asked.config, {}, asked.cluster_id, asked.log_file, "info", carrier, first_users=tuple(asked.add_scram)
        )
    except CommandFailed as failed:
        print(failed, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
