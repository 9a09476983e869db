"""Metrics that Kafka's clients push to this node (KIP-714)."""
