"""Commands that set who may do what, and how much."""
