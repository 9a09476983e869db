"""The Kafka listener with Kafka's clients, secured and not."""
