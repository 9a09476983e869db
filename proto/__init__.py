"""Contracts between processes, their codecs, and the transports that carry them."""
