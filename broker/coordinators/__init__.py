"""Group and transaction coordinators on the logs of their partitions, and the markers they send."""
