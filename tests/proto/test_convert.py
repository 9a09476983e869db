"""Our types and the contracts say the same, and every value survives the way there and back."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_args

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicId
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
from tidelog.proto.calls.backup_api import ImportRecordsRequest
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
    def check(value: object) -> None:
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


IMPORT = ImportRecordsRequest(TopicId(b"i" * 16), 300, LeaderEpoch(7), Offset(1 << 40), b"r" * 200, 9, "dr")


def test_records_of_an_import_are_a_view_of_what_came() -> None:
    found = from_proto(ImportRecordsRequest, to_proto(dataclasses.replace(IMPORT, records=memoryview(IMPORT.records))))
    assert found == IMPORT
    assert isinstance(found.records, memoryview)


def test_a_bulk_field_may_be_anywhere_and_protobuf_reads_it_as_well() -> None:
    data = to_proto(IMPORT)
    message = api_pb2.ImportRecordsRequest.FromString(data)
    assert message.records == IMPORT.records
    for other in (
        message.SerializeToString(),  # in the order of the fields' numbers, as earlier releases send it
        bytes.fromhex("a806 07") * 100 + data,  # fields of a later release
        to_proto(dataclasses.replace(IMPORT, records=b"old")) + data,  # the last one counts
    ):
        assert from_proto(ImportRecordsRequest, other) == IMPORT


@given(st.integers(0, len(to_proto(IMPORT)) - 1), st.binary(min_size=1, max_size=3))
def test_a_damaged_bulk_field_is_read_as_protobuf_reads_it(position: int, damage: bytes) -> None:
    sound = to_proto(IMPORT)
    for data in (sound[:position], sound[:position] + damage + sound[position + len(damage) :]):
        try:
            expected = api_pb2.ImportRecordsRequest.FromString(data)
        except DecodeError:
            with pytest.raises(BadMessage):
                from_proto(ImportRecordsRequest, data)
        else:
            found = from_proto(ImportRecordsRequest, data)
            assert (found.records, found.partition, found.link) == (
                expected.records,
                expected.partition,
                expected.link,
            )


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
