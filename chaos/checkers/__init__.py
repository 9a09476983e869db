"""Judges of histories and states: pure functions that return violations, or an empty list."""
