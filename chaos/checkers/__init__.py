"""Judges of histories and states: pure functions that return what is wrong, an empty list for nothing."""
