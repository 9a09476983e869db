"""Calls to the coordinators of groups and transactions."""
