"""Nodes of release 0.1 beside present ones in one simulated world."""
