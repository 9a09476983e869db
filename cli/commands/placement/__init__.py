"""Commands that place replicas on brokers and disks, and choose leaders."""
