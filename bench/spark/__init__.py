"""Spark's source and sink."""
