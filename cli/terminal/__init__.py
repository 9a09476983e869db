"""Commands' options, and how they print."""
