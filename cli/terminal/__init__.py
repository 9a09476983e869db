"""Command options and output."""
