"""Several workers on the partitions of one group member: order by key, retries, dead letters, deduplication."""
