"""FindCoordinator. From version 4 on it takes several keys; version 0 only knows groups."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.proto.calls.group_api import GROUP_COORDINATOR, FindCoordinatorRequest
from tidelog.proto.kafka.messages import field

_SEVERAL_KEYS: Final = 4


async def find_coordinator(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    keys = tuple(request.coordinator_keys) if version >= _SEVERAL_KEYS else (request.key,)
    answer = await context.call(FindCoordinatorRequest(keys, field(request, "key_type", GROUP_COORDINATOR)))
    found = answered(answer)
    return found if version >= _SEVERAL_KEYS else found["coordinators"][0]


APIS: Final = (Api(10, 0, 6, find_coordinator),)
