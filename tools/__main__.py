"""Runs :mod:`dev.commands`; started by the ``dev`` script with whatever Python the machine has."""

import sys

from dev.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
