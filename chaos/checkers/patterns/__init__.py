"""Judges of what programs build on the log."""
