"""Commands for one node, and for what lies on its disks."""
