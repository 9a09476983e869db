"""Client quotas: how much of a broker a user, client id or address may use."""
