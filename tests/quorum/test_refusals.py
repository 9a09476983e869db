"""Every request that only the controller decides can be refused as a whole."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tidelog.broker.metadata.controller_channel import refused_by_standby
from tidelog.metadata_quorum.controller.refusals import ControllerRequest, refuse
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    AlterResource,
    ConfigResource,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    NewTopic,
    PartitionGrowth,
)
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest, QuotaAlteration, QuotaEntity
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.table import CALLS

ITEMS: dict[type[Request[Response]], tuple[Request[Response], str]] = {
    CreateTopicsRequest: (CreateTopicsRequest((NewTopic("a"),)), "topics"),
    DeleteTopicsRequest: (DeleteTopicsRequest(("a",), ()), "topics"),
    CreatePartitionsRequest: (CreatePartitionsRequest((PartitionGrowth("a", 2),)), "topics"),
    IncrementalAlterConfigsRequest: (
        IncrementalAlterConfigsRequest((AlterResource(ConfigResource("topic", "a"), ()),)),
        "resources",
    ),
    AlterClientQuotasRequest: (
        AlterClientQuotasRequest((QuotaAlteration((QuotaEntity("user", "a"),), ()),)),
        "entries",
    ),
}
"""The requests whose answers have an error for each item, and the answer's field with the items."""


@pytest.mark.parametrize("kind", get_args(ControllerRequest))
def test_each_request_is_refused_in_its_own_answer(kind: type[Request[Response]]) -> None:
    request, items = ITEMS.get(kind, (object.__new__(kind), ""))
    answer = refuse(request, ErrorCode.NOT_CONTROLLER, "ask another")
    assert type(answer) is CALLS[kind]
    refused: list[Any] = list(getattr(answer, items)) if items else [answer]
    assert refused
    for found in refused:
        assert found.error is ErrorCode.NOT_CONTROLLER
        assert getattr(found, "error_message", "ask another") == "ask another"
    assert refused_by_standby(answer), "a broker would hand it to its client, and not ask the next controller"
