"""Clients at work, written once: against a :class:`~tidelog.chaos.workloads.world.World`, simulated or real."""
