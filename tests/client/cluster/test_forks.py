"""A program with a client forks: pyspark does, for its JVM."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The search for the program is long, so that a child that would abort before it is there does so.
PROGRAM = """
import importlib, os, subprocess, sys, threading

importlib.import_module(sys.argv[1])
from tidelog.testing import Cluster

real = os.get_exec_path
os.get_exec_path = lambda env=None: [f"/nowhere/{number}" for number in range(60_000)] + real(env)
with Cluster(nodes=1, transport="grpc") as cluster:
    cluster.create_topic("t", 1)
    stopped = threading.Event()

    def send():
        with cluster.producer() as producer:
            while not stopped.is_set():
                producer.send_and_wait("t", b"x")

    sending = threading.Thread(target=send)
    sending.start()
    try:
        print([subprocess.call(["true"], preexec_fn=int) for _ in range(20)])
    finally:
        stopped.set()
        sending.join()
"""


@pytest.mark.parametrize("first", ["tidelog", "tidelog.proto.transport.grpc_tls"])
def test_a_child_gets_to_its_program_while_a_client_sends(first: str) -> None:
    """Whatever the program imports first: gRPC reads its settings when it is imported."""
    found = subprocess.run([sys.executable, "-c", PROGRAM, first], capture_output=True, text=True, timeout=110)
    assert (found.stdout.strip(), found.returncode) == (str([0] * 20), 0), found.stderr
