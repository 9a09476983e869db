"""The history of a run, as it is written."""
