"""The Spark connector under kill -9: real Spark, real brokers, and deaths that are placed, not waited for."""
