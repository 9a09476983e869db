"""Clusters that go from one release to another under load."""
