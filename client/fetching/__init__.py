"""Fetched records, positions in partitions, offsets by time."""
