"""Programs on the log, of the kinds that docs/patterns.md describes."""
