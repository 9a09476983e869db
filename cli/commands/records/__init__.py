"""Commands that send and read records."""
