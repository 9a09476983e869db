"""Histories of transactions in one partition for GoldenTransactions.java, one a line: steps with ``;`` between.

``D producer epoch sequence count``: a transactional batch; ``P count``: a plain one; ``A producer epoch`` and
``C producer epoch``: a marker that aborts or commits.
"""

from __future__ import annotations

import random


def history(rng: random.Random, steps: int) -> str:
    epochs = dict.fromkeys((7, 8, 1 << 40), 0)
    sequences = dict.fromkeys(epochs, 0)
    found = []
    for _ in range(steps):
        producer = rng.choice(list(epochs))
        kind = rng.choices("DPAC", (6, 1, 3, 1))[0]
        count = rng.randint(1, 4)
        if kind == "P":
            found.append(f"P {count}")
        elif kind == "D":
            found.append(f"D {producer} {epochs[producer]} {sequences[producer]} {count}")
            sequences[producer] += count
        else:
            epochs[producer] += 1
            sequences[producer] = 0
            found.append(f"{kind} {producer} {epochs[producer]}")
    return ";".join(found)


if __name__ == "__main__":
    chosen = random.Random(11)
    for length in (3, 8, 20, 20, 60, 60, 60, 200):
        print(history(chosen, length))
