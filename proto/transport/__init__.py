"""Carriers of calls and streams between processes: gRPC, and memory for tests and the simulation."""

import os

# gRPC's core reads these when ``grpc`` is first imported, so they stand where no module of this folder can be before.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to stderr on its own; errors reach us as exceptions
# Its event engine hands each event from thread to thread once more: a fifth of the time from send to acknowledgement.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# A forked child would start gRPC's threads again and abort once it has closed its files, before it runs its program:
# pyspark starts its JVM so. A child without a program of its own has no event loop, and no use for these threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
