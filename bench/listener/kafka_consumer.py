"""A consumer in a separate process, like librdkafka's C benchmark.

In a process that has just produced millions of records, the state of its memory would affect the measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from tidelog.bench.listener import librdkafka


def consume(configuration: Mapping[str, str], topic: str, partitions: int, count: int, timeout_s: float) -> float:
    """Run :meth:`tidelog.bench.listener.librdkafka.Client.consume` in a new process. Raises
    :class:`librdkafka.Failed`."""
    task = json.dumps([dict(configuration), topic, partitions, count, timeout_s])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidelog.bench.listener.kafka_consumer", task],
        capture_output=True,
        text=True,
        timeout=2 * timeout_s,
    )
    if done.returncode:
        raise librdkafka.Failed(f"the consumer's process ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)


def main(task: str) -> None:
    configuration, topic, partitions, count, timeout_s = json.loads(task)
    with librdkafka.consumer(configuration) as client:
        print(client.consume(topic, partitions, count, timeout_s))


if __name__ == "__main__":
    main(sys.argv[1])
