"""Hash functions and checksums, as Kafka and its format define them."""
