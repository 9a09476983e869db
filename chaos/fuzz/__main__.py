"""``python -m tidelog.chaos.fuzz``: what ``./dev fuzz`` runs."""

import sys

from tidelog.chaos.fuzz.command import main

try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
