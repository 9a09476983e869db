"""The same work given to Tidelog and to Apache Kafka, side by side on this machine: ``./dev beside-kafka``."""
