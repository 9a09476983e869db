"""The simulation of controllers alone."""
