"""The consumer protocol (KIP-848): the coordinator assigns the partitions and moves each member to its share."""
