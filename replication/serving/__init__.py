"""A leader's work for producers, consumers and followers."""
