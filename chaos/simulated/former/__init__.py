"""Nodes of release 0.1 beside current ones in one simulated world."""
