"""The coordinator's part of a sink: it begins jobs, decides batches and describes them."""
