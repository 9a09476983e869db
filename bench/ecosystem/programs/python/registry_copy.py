"""confluent-kafka's serializers with a schema registry: writes records and reads them back, in Avro and in JSON."""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


def main(bootstrap: str, registry: str, count: int) -> None:
    client = SchemaRegistryClient({"url": registry})
    kinds = {
        "avro": (AvroSerializer(client, AVRO), AvroDeserializer(client)),
        "json": (JSONSerializer(JSON, client), JSONDeserializer(JSON, schema_registry_client=client)),
    }
    for kind, (write, read) in kinds.items():
        topic = f"orders-{kind}"
        at = SerializationContext(topic, MessageField.VALUE)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(count):
            producer.produce(topic, write({"id": number}, at))
        producer.flush()
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": kind,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        found: list[int] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None, "no record within 30 s"
            assert message.error() is None, message.error()
            found.append(read(message.value(), at)["id"])
        consumer.close()
        assert sorted(found) == list(range(count)), found
        print(kind, len(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
