"""The SDK: producer, consumer and admin client, in asyncio and in blocking form."""
