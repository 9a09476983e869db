"""Producing, consuming, batches and backups: figures of the data path."""
