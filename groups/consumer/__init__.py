"""The consumer protocol (KIP-848): the coordinator divides the partitions and leads each member to its share."""
