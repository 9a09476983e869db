"""Producer identities; the transaction coordinator stands here too once transactions are built."""
