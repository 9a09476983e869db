"""Membership in a consumer group and its committed offsets."""
