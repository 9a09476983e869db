"""From the start of the processes to the first acknowledged record."""

from __future__ import annotations

import compileall
import time
from collections.abc import Mapping
from pathlib import Path

from tidelog.bench.clusters import with_topics


def startup(root: Path) -> Mapping[str, float]:
    _compile()
    return {"startup_one": _start(root / "one", 1), "startup_three": _start(root / "three", 3)}


def _compile() -> None:
    """Compile the node's modules, as pip does at installation and Python at first use, unless
    ``PYTHONDONTWRITEBYTECODE`` is set: then every process would compile the whole node again, which takes a third of
    its start."""
    import tidelog

    for path in Path(tidelog.__file__).parent.iterdir():
        if path.is_dir():
            compileall.compile_dir(path, quiet=2)
        elif path.suffix == ".py":
            compileall.compile_file(path, quiet=2)


def _start(root: Path, nodes: int) -> float:
    with with_topics(root, nodes, "bench", partitions=1) as cluster:
        first_record(cluster.bootstrap, "bench")
        cluster.stop()
        started = time.perf_counter()
        cluster.start()
        first_record(cluster.bootstrap, "bench")
        return time.perf_counter() - started


def first_record(bootstrap: str, topic: str, timeout_s: float = 60.0, partition: int | None = None) -> None:
    """Send one record and wait for its acknowledgement, retrying without pause until there is a leader."""
    from tidelog import Producer

    with Producer(
        bootstrap,
        acks="all",
        linger_ms=0,
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=20,
        retry_backoff_ms=5,
        retry_backoff_max_ms=20,
    ) as producer:
        producer.send(topic, b"first", partition=partition).result(timeout_s)
