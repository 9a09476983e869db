"""Consumer groups: the coordinator of membership and committed offsets."""
