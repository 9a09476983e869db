"""A partition's log as a whole: appending, recovery, retention, compaction, log directories."""
