"""Word count, as every processor of streams has it: run in two applications, while they and a broker are killed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Final

from tidelog import Admin
from tidelog.bench import clusters
from tidelog.bench.ecosystem.check import application, expect, produce, records, until

PARTITIONS: Final = 4
LINES: Final = 4_000
WORDS_OF_A_LINE: Final = 3
WORDS: Final = tuple(f"word-{number}" for number in range(40))
TOPICS: Final = ("lines", "counts")


def counted(
    root: Path,
    command: Sequence[str],
    ready: str,
    number: Callable[[bytes], int],
    *,
    kills: bool = True,
    prepare: Callable[[str], None] = lambda bootstrap: None,
    judge: Callable[[str, Counter[str]], None] = lambda bootstrap, words: None,
) -> str:
    """Run a program that counts the words of lines and writes each new count under its word, exactly once.

    ``command``: gets the bootstrap address and a directory of the application's own. ``ready``: what it prints once it
    reads. ``number``: how it writes a count. ``kills``: else one application runs in peace.
    ``prepare`` is called before, ``judge`` with the number of each word after it.
    """
    with clusters.running(root, 3) as cluster, ExitStack() as stack:
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            for topic in TOPICS:
                clusters.create_topic(admin, topic, partitions=PARTITIONS, copies=3)

        prepare(bootstrap)

        def run(name: str) -> Popen[bytes]:
            return application(stack, [*command, bootstrap, str(root / name)], root / f"{name}.log", ready)

        def written(what: int) -> None:
            until(f"{what} counts", lambda: len(records(bootstrap, "counts")) >= what)

        rng = random.Random(1)
        lines = [" ".join(rng.choices(WORDS, k=WORDS_OF_A_LINE)) for _ in range(LINES)]
        part = LINES // 4
        first = run("first")
        if kills:
            second = run("second")
            produce(bootstrap, lines[:part])
            written(part)
            first.kill()
            produce(bootstrap, lines[part : 2 * part])
            first = run("first")
            cluster.kill(1)
            produce(bootstrap, lines[2 * part : 3 * part])
            cluster.start([1])
            written(2 * part * WORDS_OF_A_LINE)
            first.kill()
            second.kill()
            produce(bootstrap, lines[3 * part :])
            cluster.wait_ready()
            run("second")
        else:
            produce(bootstrap, lines)
        written(LINES * WORDS_OF_A_LINE)
        found: dict[str, list[int]] = defaultdict(list)
        for record in records(bootstrap, "counts"):
            found[(record.key or b"").decode()].append(number(record.value or b""))
        words = Counter(word for line in lines for word in line.split())
        expect("words", sorted(words), sorted(found))
        for word, count in words.items():
            expect(f"counts of {word}", list(range(1, count + 1)), found[word])
        judge(bootstrap, words)
    way = ", with kill -9 of two applications and of a broker on the way" if kills else ""
    return (
        f"{LINES * WORDS_OF_A_LINE} words of {LINES} lines: each word's counts are 1, 2, 3 … without a gap or a "
        f"repetition{way}"
    )
