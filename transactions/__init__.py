"""Transactions: the coordinator that decides them, its ledger of sinks, and the producer ids that it gives out."""
