"""Real processes, real kills, and histories that judge what came of it."""
