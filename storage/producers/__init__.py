"""A log's knowledge of its producers: sequences, open transactions, snapshots."""
