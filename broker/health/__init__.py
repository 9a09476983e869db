"""Cluster health: one table of rules for the command, the HTTP listener, alerts and consoles."""
