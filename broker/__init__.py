"""A node: composes the log, replication and the quorum behind listeners."""
