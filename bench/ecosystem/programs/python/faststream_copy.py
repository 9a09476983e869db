"""FastStream copies a topic, at least once."""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage

broker = KafkaBroker(sys.argv[1].split(","))


@broker.subscriber("lines", group_id="copiers", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher("copies")
async def copy(message: KafkaMessage) -> bytes:
    return message.body


app = FastStream(broker)


@app.after_startup
async def told() -> None:
    print("starts", flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
