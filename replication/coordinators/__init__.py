"""Logs of coordinators on replicated partitions."""
