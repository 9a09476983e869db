"""Records for people: bounded search, shown as text or hex, with details from their batches."""
