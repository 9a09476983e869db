"""The nemesis: its acts and their times."""
