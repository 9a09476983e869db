"""Our types and the contracts say the same, and every value survives the way there and back."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls import (
    acl_api,
    api,
    delegation_token_api,
    group_api,
    quota_api,
    reassignment_api,
    sink_api,
    transaction_api,
    user_api,
)
from tidelog.proto.calls.convert import BadMessage, from_proto, to_proto
from tidelog.proto.calls.table import CALLS
from tidelog.proto.logs import metadata_records as metadata
from tidelog.proto.logs.metadata_codec import decode_batch, encode_batch
from tidelog.proto.v1 import (
    api_pb2,
    forwarded_pb2,
    groups_pb2,
    metadata_pb2,
    reassignments_pb2,
    sinks_pb2,
    transactions_pb2,
)


def message_types(module: Any) -> list[type]:
    return [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
    ]


CONTRACTS = (api_pb2, groups_pb2, transactions_pb2, sinks_pb2, reassignments_pb2, metadata_pb2, forwarded_pb2)
MODULES = (
    api,
    acl_api,
    quota_api,
    user_api,
    delegation_token_api,
    group_api,
    transaction_api,
    sink_api,
    reassignment_api,
    metadata,
)
ALL = [cls for module in MODULES for cls in message_types(module)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_type_and_contract_have_the_same_fields(cls: type) -> None:
    (message,) = (found for pb2 in CONTRACTS if (found := getattr(pb2, cls.__name__, None)))
    assert [f.name for f in dataclasses.fields(cls)] == [f.name for f in message.DESCRIPTOR.fields]


def test_every_call_is_in_the_service() -> None:
    methods = api_pb2.DESCRIPTOR.services_by_name["Tidelog"].methods_by_name
    for request, response in CALLS.items():
        method = methods[request.__name__.removesuffix("Request")]
        assert method.input_type.name == request.__name__
        assert method.output_type.name == response.__name__


st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
st.register_type_strategy(int, st.integers(-(2**31), 2**31 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_type_survives_the_way_there_and_back(cls: type) -> None:
    @settings(max_examples=30)  # each run draws others, and most fields are those of other types too
    @given(st.from_type(cls))
    def check(value: Any) -> None:
        assert from_proto(cls, to_proto(value)) == value

    check()


@given(st.lists(st.one_of([st.from_type(cls) for cls in get_args(metadata.MetadataRecord)]), max_size=4))
def test_metadata_entries_survive(records: list[Any]) -> None:
    assert decode_batch(encode_batch(records)) == tuple(records)


@given(st.binary(max_size=64))
def test_other_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for decode in (lambda: from_proto(api.CreateTopicsRequest, data), lambda: decode_batch(data)):
        try:
            decode()
        except BadMessage as bad:
            assert str(len(data)) in str(bad) or "upgrade" in str(bad)


def test_an_error_code_of_a_later_version_is_unknown_not_a_crash() -> None:
    later = transactions_pb2.InitProducerIdResponse(error=31_999)
    read = from_proto(transaction_api.InitProducerIdResponse, later.SerializeToString())
    assert read.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_items_of_all_lists_count_together() -> None:
    change = api.ConfigChange("a", "set", "b")
    resource = api.AlterResource(api.ConfigResource("topic", "t"), (change,) * 9)
    request = api.IncrementalAlterConfigsRequest((resource,) * 10)
    data = to_proto(request)
    assert from_proto(type(request), data, items_max=100) == request
    with pytest.raises(BadMessage, match="a IncrementalAlterConfigsRequest of at most 99 items, found more"):
        from_proto(type(request), data, items_max=99)
