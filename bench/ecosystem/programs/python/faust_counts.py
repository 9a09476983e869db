"""Word count with Faust: a topic by word, a table with a changelog, exactly once."""

from __future__ import annotations

import sys
from typing import Any

import faust

BOOTSTRAP, DIRECTORY = sys.argv[1:]

app = faust.App(
    "word-count",
    broker=[f"kafka://{address}" for address in BOOTSTRAP.split(",")],
    datadir=DIRECTORY,
    processing_guarantee="exactly_once",
    topic_partitions=4,
    topic_replication_factor=3,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.5,
    broker_commit_interval=0.5,
    web_enabled=False,
)
lines = app.topic("lines", value_serializer="raw", key_serializer="raw", partitions=4)
words = app.topic("words", value_serializer="raw", key_serializer="raw", partitions=4, internal=True)
output = app.topic("counts", value_serializer="raw", key_serializer="raw", partitions=4)
table = app.Table("totals", default=int, partitions=4)


@app.agent(lines)
async def divide(stream: Any) -> None:
    async for line in stream:
        for word in line.split():
            await words.send(key=word, value=word)


@app.agent(words)
async def count(stream: Any) -> None:
    async for word in stream:
        table[word.decode()] += 1
        await output.send(key=word, value=str(table[word.decode()]).encode())


@app.on_partitions_assigned.connect
async def told(*_: object, **__: object) -> None:
    print("starts", flush=True)


if __name__ == "__main__":
    faust.Worker(app, loglevel="info").execute_from_commandline()
