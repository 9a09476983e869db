"""Connections, metadata and retries that every client shares."""
