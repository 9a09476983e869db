"""The state of groups: members, offsets, open transactions, and the state that all decisions share."""
