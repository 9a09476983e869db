"""Benchmarks and the history of their results."""
