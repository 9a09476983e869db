"""A partition as leader and as follower: in-sync replicas, high watermark, epochs, truncation, fetchers."""
