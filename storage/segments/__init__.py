"""Segments with their indexes, and reading across them."""
