"""Commands for topics, settings, feature levels and whole clusters."""
