"""A node's handlers: one module for each group of calls and streams. Nothing here knows the carrier."""
