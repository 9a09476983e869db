"""Faults on a cluster of real processes whose every link runs through a proxy, and the judgement after them."""
