"""Commands that say who may do what, and how much."""
