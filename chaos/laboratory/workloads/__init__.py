"""Clients at work in the laboratory."""
