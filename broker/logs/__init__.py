"""Work on logs in the background: retention, flushing, cleaning."""
