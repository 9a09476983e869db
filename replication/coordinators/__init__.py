"""Coordinators' logs on replicated partitions."""
