"""Calls about topics, their settings, offsets and replicas."""
