"""Pages and summaries of runs."""
