"""Faults on a cluster of real processes with a proxy on every link, and the judgement afterwards."""
