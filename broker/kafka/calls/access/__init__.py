"""Calls of logins, and about users, access control, quotas and tokens."""
