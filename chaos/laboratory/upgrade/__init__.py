"""Clusters that move from one release to another under load."""
