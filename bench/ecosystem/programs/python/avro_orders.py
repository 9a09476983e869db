"""confluent-kafka's serializers: writes orders in two versions of a schema, and reads what a query made of them."""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SOURCE, SINK = "orders-avro", "large-orders-avro"
ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": "string", "default": ""}


def write(bootstrap: str, client: SchemaRegistryClient, count: int) -> None:
    """Write orders, of which every second has a note and so the second version of the schema."""
    at = SerializationContext(SOURCE, MessageField.VALUE)
    versions = [json.dumps({"type": "record", "name": "Order", "fields": fields}) for fields in ([ID], [NOTE, ID])]
    serializers = [AvroSerializer(client, text) for text in versions]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        order = {"id": number, "note": f"note {number}"}
        value = serializers[number % 2](order if number % 2 else {"id": number}, at)
        producer.produce(SOURCE, value, key=str(number).encode())
    producer.flush()


def read(bootstrap: str, client: SchemaRegistryClient, count: int) -> list[tuple[str, int, str]]:
    """Return the key, id and note of so many large orders."""
    at = SerializationContext(SINK, MessageField.VALUE)
    deserialize = AvroDeserializer(client)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "large",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([SINK])
    found: list[tuple[str, int, str]] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, "no record within 30 s"
        assert message.error() is None, message.error()
        order = deserialize(message.value(), at)
        found.append(((message.key() or b"").decode(), order["id"], order["note"]))
    consumer.close()
    return sorted(found, key=lambda order: order[1])


if __name__ == "__main__":
    what, bootstrap, registry, count = sys.argv[1:]
    client = SchemaRegistryClient({"url": registry})
    if what == "write":
        write(bootstrap, client, int(count))
    else:
        print(json.dumps(read(bootstrap, client, int(count))))
