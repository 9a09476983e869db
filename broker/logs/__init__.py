"""Background work on logs: retention, flushing, cleaning."""
