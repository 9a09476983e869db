"""Browsers' requests: HTTP, files, sessions, and the one door that every request passes."""
