"""Assembles a node: roles, listeners, supervision, HTTP."""
