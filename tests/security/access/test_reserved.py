"""Without an authorizer, what belongs to the leaders of delay topics is refused to clients, and to nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.broker.access.reserved import reserving
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import Offset, ProducerEpoch, ProducerId
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest
from tidelog.proto.calls.group_api import (
    DeleteGroupsRequest,
    GroupPartition,
    JoinGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tidelog.proto.transport.network import CallContext

from .test_permissions import IMAGE, Handler, errors

WHO = ProducerId(1), ProducerEpoch(0)
COMMIT = OffsetCommitPartition("t", 0, Offset(1))


def requests(transactional_id: str, group: str) -> list[Request[Any]]:
    return [
        InitProducerIdRequest(transactional_id),
        AddOffsetsToTxnRequest(transactional_id, *WHO, "g"),
        AddOffsetsToTxnRequest("x", *WHO, group),
        EndTxnRequest(transactional_id, *WHO, True),
        TxnOffsetCommitRequest("x", group, *WHO, 1, "m", None, (COMMIT,)),
        OffsetCommitRequest(group, 1, "m", None, (COMMIT,)),
        DeleteGroupsRequest((group,)),
        OffsetDeleteRequest(group, (GroupPartition("t", 0),)),
        JoinGroupRequest(group, 10_000, 10_000, "m", None, "consumer", ()),
        ConsumerGroupHeartbeatRequest(group, "m", 0),
    ]


async def ask(request: Request[Any], listener: str) -> tuple[bool, set[ErrorCode]]:
    """Whether it was served, and the errors of the answer."""
    handler = Handler()
    calls = reserving({type(request): lambda asked, _: handler(asked)}, frozenset({"NODES"}), lambda: IMAGE)
    answer = await calls[type(request)](request, CallContext(listener, "somebody"))
    return handler.asked == [request], set(errors(answer)) - {ErrorCode.NONE}


@pytest.mark.parametrize("request_", requests("__delay.t.0", "__delay.t"), ids=lambda value: type(value).__name__)
async def test_what_movers_use_is_refused_to_clients_alone(request_: Request[Any]) -> None:
    served, found = await ask(request_, "CLIENTS")
    assert not served
    assert found <= {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}
    assert found
    assert await ask(request_, "NODES") == (True, set())


@pytest.mark.parametrize("request_", requests("y", "h"), ids=lambda value: type(value).__name__)
async def test_others_notice_nothing(request_: Request[Any]) -> None:
    assert await ask(request_, "CLIENTS") == (True, set())
