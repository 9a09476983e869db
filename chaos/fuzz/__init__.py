"""The Kafka listener under hostile input and under many connections."""
