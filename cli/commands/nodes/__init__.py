"""Commands for one node and its disks."""
