"""Proof: simulated and real clusters under faults, and the judges of the answers to their clients."""
