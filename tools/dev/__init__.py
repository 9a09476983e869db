"""The ``./dev`` commands. Standard library only: this runs before anything is installed."""
