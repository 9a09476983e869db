"""Links: mirror topics of another cluster, with their offsets, until they are promoted."""
