"""Producing, with and without transactions, in asyncio and blocking form."""
