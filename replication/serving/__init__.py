"""What a leader does for producers, consumers and followers."""
