"""``./dev sim``: campaigns, the replay of a seed, its shrinking, the proof by mutants."""

from __future__ import annotations

import sys

from tidelog.chaos.simulated.runner.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
