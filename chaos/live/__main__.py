"""``python -m tidelog.chaos.live``."""

import sys

from tidelog.chaos.live.command import main

if __name__ == "__main__":
    sys.exit(main())
