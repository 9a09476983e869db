"""Backups and restores of a cluster: the cut, the copy, the restore. The files are in :mod:`tidelog.proto.backups`."""
