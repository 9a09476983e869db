"""Produce and Fetch of the Kafka listener, without copying where possible."""
