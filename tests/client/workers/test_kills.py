"""kill -9 of a program with workers, again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tidelog.testing import Cluster

from . import killed_program
from .test_workers import cluster, committed, fill, letters, topic

__all__ = ["cluster", "topic"]
COUNT = 800
KILLS = 3
KEYS = 12


def test_each_record_is_handled_and_each_dead_letter_is_there_once(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, partitions=2)
    fill(cluster, topic, COUNT, keys=KEYS)
    noted, rng, kills = tmp_path / "noted", random.Random(4), 0
    command = [sys.executable, str(Path(killed_program.__file__)), cluster.bootstrap, topic, dead, str(noted)]
    deadline = time.monotonic() + 120
    while committed(cluster, topic) < COUNT:
        enough = _lines(noted) + rng.randrange(20, 120)
        with subprocess.Popen(command) as program:
            try:
                while (_lines(noted) < enough) if kills < KILLS else (committed(cluster, topic) < COUNT):
                    assert time.monotonic() < deadline
                    assert program.poll() is None, "it ended by itself"
                    time.sleep(0.005)
            finally:
                program.kill()
                kills += 1
    assert kills > KILLS
    handled = Counter(map(int, noted.read_text().split()))
    assert handled.keys() == set(range(COUNT)), "each at least once"
    refused = [n for n in range(COUNT) if n % KEYS % 3 == 0]
    assert Counter(int(letter.value or b"") for letter in letters(cluster, dead)) == Counter(refused)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
