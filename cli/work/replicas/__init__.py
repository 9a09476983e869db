"""Where replicas lie and should lie, and how they get there."""
