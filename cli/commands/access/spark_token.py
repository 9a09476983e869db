"""A delegation token as a Hadoop token file, from which Spark's Kafka connector takes it. Pure; source: Hadoop's
``Credentials.writeTokenStorageToStream`` (format WRITABLE), Spark's ``KafkaTokenUtil``."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a cluster may be called in ``spark.kafka.clusters.NAME.…``."""
_KIND: Final = "KAFKA_DELEGATION_TOKEN"
_SERVICE: Final = "kafka.server.delegation.token."
_ONE_BYTE_MAX: Final = 127


def token_file(token_id: str, hmac_as_base64: str, cluster: str) -> str:
    """Return the file's content for one token; ``cluster`` matches :data:`NAME`."""
    service = _SERVICE + cluster
    texts = (service, token_id, hmac_as_base64, _KIND, service)
    assert all(text.isascii() and len(text) <= _ONE_BYTE_MAX for text in texts)
    return f"HDTS\0{chr(1)}{''.join(chr(len(text)) + text for text in texts)}\0"
