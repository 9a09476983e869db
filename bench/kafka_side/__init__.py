"""The same work for Tidelog and Apache Kafka, side by side on this machine: ``./dev beside-kafka``."""
