"""The judges during a run."""
