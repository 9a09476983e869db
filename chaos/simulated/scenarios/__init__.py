"""The scenarios that there are."""
