"""Connections of real processes through toxiproxy."""
