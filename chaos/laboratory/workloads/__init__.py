"""Clients that work in the laboratory."""
