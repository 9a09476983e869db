"""The consumer, in asyncio and blocking form."""
