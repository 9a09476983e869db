"""What several calls answer in the same way."""
