"""Startup, failover, idle cost and many partitions; the quorum alone."""
