"""A run: cluster, clients, faults, final repair, judgement."""
