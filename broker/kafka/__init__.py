"""The listener that speaks Kafka's wire protocol: an adapter over the calls that every listener serves."""
