"""Campaigns, replays, shrinking, the proof by mutants."""
