"""Files below a log: the seam to the operating system, handles, flushing, checkpoints."""
