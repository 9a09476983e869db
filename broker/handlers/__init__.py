"""What a node answers: one module for each group of calls and streams. Nothing here knows the carrier."""
