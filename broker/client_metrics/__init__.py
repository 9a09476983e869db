"""Metrics that Kafka clients push to this node (KIP-714)."""
