"""A node's settings, one base of ``NodeConfig`` for each concern."""
