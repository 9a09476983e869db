"""Files below a log: the operating system interface, handles, flushing, checkpoints."""
