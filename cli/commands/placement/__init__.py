"""Commands that say which broker and which disk has which replicas, and who leads."""
