"""Drills for operators: a deliberate fault, watched, measured, undone, and judged by stated objectives."""
