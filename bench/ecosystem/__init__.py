"""Foreign programs of Kafka's ecosystem, run against Tidelog and judged: ``./dev ecosystem``."""
