"""The capacity planner: from a load to nodes, disks and network, by figures that were measured."""
