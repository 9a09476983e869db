"""A program that tests kill: workers that note each record in a file, and refuse every third key."""

from __future__ import annotations

import os
import sys
import time

from tidelog import ConsumerRecord, RetryPolicy, Workers


def main(bootstrap: str, topic: str, dead_letters: str, path: str) -> None:
    noted = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handler(record: ConsumerRecord) -> None:
        number = int(record.value or b"")
        os.write(noted, b"%d\n" % number)
        time.sleep(0.004)
        if int(record.key or b"") % 3 == 0:
            raise ValueError("not this key")

    Workers(
        handler,
        bootstrap,
        topics=topic,
        group_id=topic,
        workers=4,
        in_flight_max=20,
        dead_letters=dead_letters,
        retry=RetryPolicy(attempts=2, backoff_ms=1),
        consumer_settings={"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500},
        producer_settings={"transaction_timeout_ms": 1_000},
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
