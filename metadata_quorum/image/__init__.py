"""The state of the cluster at one offset of the metadata log, and how records change it."""
