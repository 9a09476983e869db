"""The coordinator's part of a sink: its jobs begin, decide batches and are described."""
