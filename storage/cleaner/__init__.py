"""Log compaction: of each key, the latest record stays (Kafka's ``LogCleaner``)."""
