"""Anomalies that a history of a Kafka-like log must never show: names, rules, the evidence."""
