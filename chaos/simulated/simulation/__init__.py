"""A run: cluster, clients, faults, final mending, judgement."""
