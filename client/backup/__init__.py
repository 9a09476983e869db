"""Backups and restores of a cluster: the cut, the files, the restore."""
