"""Produce and Fetch of the Kafka listener, without a copy where that can be."""
