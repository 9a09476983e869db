"""The classic protocol: members join, one of them assigns, all sync."""
