"""Delay topics: their partitions' leaders move each record to its target once it is due."""
