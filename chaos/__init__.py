"""Proof: simulated and real clusters under faults, and the judges of what their clients were told."""
