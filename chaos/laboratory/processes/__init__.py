"""Nodes as processes, and the files they leave behind."""
