"""Start, failover, idle cost and many partitions; the quorum by itself."""
