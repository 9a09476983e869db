"""Calls about the cluster: its brokers, its features, and what clients need first."""
