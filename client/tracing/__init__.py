"""What became of messages: a store of traces in a topic, and OpenTelemetry."""
