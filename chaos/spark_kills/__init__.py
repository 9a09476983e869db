"""The Spark connector under kill -9: real Spark, real brokers, and kills at chosen points instead of by chance."""
