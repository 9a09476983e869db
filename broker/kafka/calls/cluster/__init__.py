"""Calls about the cluster: its brokers, its features, what a client must know first."""
