"""SaslHandshake and SaslAuthenticate when there is no login, or it is over.

The login itself is :mod:`tidelog.broker.kafka.login`. Source: Kafka's ``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from typing import Final

from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode


async def handshake(_: object, __: int, ___: KafkaContext) -> Answer:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}


async def authenticate(_: object, __: int, ___: KafkaContext) -> Answer:
    text = "SaslAuthenticate is part of a login, after SaslHandshake, on a SASL_PLAINTEXT or SASL_SSL listener"
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": text, "auth_bytes": b""}


APIS: Final = (Api(17, 0, 1, handshake), Api(36, 0, 2, authenticate))
