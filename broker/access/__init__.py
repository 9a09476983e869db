"""Authorization: the permission that each request needs, and what a caller without it is answered."""
