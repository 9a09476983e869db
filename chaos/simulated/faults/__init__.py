"""Faults of the simulated cluster: kinds, mixes, plots."""
