"""Nodes as processes, and what may be left of them."""
