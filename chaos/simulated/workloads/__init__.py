"""Clients at work in the simulation."""
