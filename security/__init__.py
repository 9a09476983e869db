"""Identities: the other end of a connection, how it was proved, and what a listener's security protocol asks for."""
