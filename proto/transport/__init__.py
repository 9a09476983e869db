"""Carriers of calls and streams between processes: gRPC, and memory for tests and the simulation."""

import os

# gRPC's core reads these when ``grpc`` is first imported, so they are set here, before any module of this folder.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to stderr by itself; errors reach us as exceptions
# Its event engine adds a thread hop to each event: a fifth of the time from send to acknowledgement.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# A forked child would restart gRPC's threads, and abort when it closes its files before it runs its program: pyspark
# starts its JVM that way. A child without a program has no event loop, and does not need these threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
