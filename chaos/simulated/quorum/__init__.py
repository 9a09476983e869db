"""The simulation of the controllers alone."""
