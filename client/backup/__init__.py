"""Backups of a cluster, and restores: the cut, the files, the way back."""
