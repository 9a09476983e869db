"""Frames of the Kafka listener: reading, answering in order, limits."""
