"""The history of a run, as written to a file."""
