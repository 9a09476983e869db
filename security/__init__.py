"""Identities: who is at the other end of a connection, how that was proved, what each security protocol requires."""
