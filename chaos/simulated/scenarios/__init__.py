"""The available scenarios."""
