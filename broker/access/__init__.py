"""What callers may do: the permission that each request needs, and what those without it are answered."""
