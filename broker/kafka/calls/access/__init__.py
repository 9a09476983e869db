"""Calls for logins, users, access control, quotas and tokens."""
