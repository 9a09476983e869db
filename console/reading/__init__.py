"""Records for people: searched with bounds, shown as text or hex, with what only their batches tell."""
