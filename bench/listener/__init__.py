"""Kafka's port, with Kafka's clients, secured and not."""
