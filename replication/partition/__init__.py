"""A partition as a state machine: leader, follower, ISR, high watermark."""
