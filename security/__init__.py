"""Identities: who is at the other end of a connection, how that was proved, and what each security protocol requires."""
