"""The capacity planner: calculates nodes, disks and network for a load from measured costs."""
