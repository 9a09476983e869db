"""The demo's first half: flights into the log and back, while nodes and readers die."""
