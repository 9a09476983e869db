"""Workers on one partition: how many times faster several slow handlers are than one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import with_topics

if TYPE_CHECKING:
    from tidelog import ConsumerRecord

WORKERS: Final = 16
HANDLER_S: Final = 0.02
KEYS: Final = 400
RECORDS: Final = 4_000
BOUND_S: Final = 120.0
_TOPIC: Final = "bench"


def slow_handlers(root: Path) -> Mapping[str, float]:
    """Measure handlers that sleep, in the order of keys: all their sleep divided by the time from the first record to
    the last. With one worker that would be 1."""
    from tidelog import Producer, Workers

    counted = threading.Lock()
    started: list[float] = []

    def handle(record: ConsumerRecord) -> None:
        with counted:
            started.append(time.perf_counter())
        time.sleep(HANDLER_S)
        with counted:
            if len(started) == RECORDS:
                job.stop()

    with with_topics(root, 1, _TOPIC, partitions=1, copies=1) as cluster:
        with Producer(cluster.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(_TOPIC, b"%d" % number, b"%d" % (number % KEYS))
        job = Workers(handle, cluster.bootstrap, topics=_TOPIC, group_id="bench", workers=WORKERS)
        bound = threading.Timer(BOUND_S, job.stop)
        bound.daemon = True
        bound.start()
        counts = job.run()
        bound.cancel()
    if counts.handled < RECORDS:
        raise RuntimeError(f"expected {RECORDS} records handled within {BOUND_S:g} s, found {counts.handled}")
    return {"keyed_workers_16": RECORDS * HANDLER_S / (started[-1] + HANDLER_S - started[0])}
