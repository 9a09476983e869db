"""``python -m tidelog.chaos.kafka``: what ``./dev fuzz`` runs."""

import sys

from tidelog.chaos.kafka.command import main

try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
