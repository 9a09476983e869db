"""Drills for operators: a fault on purpose, watched, measured, undone, and judged by stated objectives."""
