"""A node put together: roles, listeners, supervision, HTTP."""
