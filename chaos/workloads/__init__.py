"""Client workloads, written once, for a :class:`~tidelog.chaos.workloads.world.World` that is simulated or real."""
