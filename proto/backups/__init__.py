"""Backups: the manifest, the files of batches, where they lie, and their examination."""
