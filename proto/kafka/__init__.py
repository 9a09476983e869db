"""Kafka's wire protocol: headers and messages of every version, and the two that carry records."""
