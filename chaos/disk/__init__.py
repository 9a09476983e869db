"""Faults of a process's disk and wall clock: a shim that is loaded before libc, and its control."""
