"""One partition's log: appending, recovery, retention, compaction, log directories."""
