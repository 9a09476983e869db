"""Client quotas: how much of a broker a user, a client id or an address may use."""
