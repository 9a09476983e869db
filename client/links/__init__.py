"""Links: topics of another cluster, with their offsets, kept up to date here until they are promoted."""
