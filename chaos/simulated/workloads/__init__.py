"""Clients that work in the simulation."""
