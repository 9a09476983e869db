"""Committed offsets: commits, transactions, expiry."""
