"""Transactions: the coordinator that decides them, its ledger of sinks, and its producer ids."""
