"""Access control lists in the metadata log: what is made, what is refused, what a filter deletes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.controller.conftest import Bench
from tidelog.metadata_quorum.controller import acl_changes
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.acl_api import (
    AclEntry,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    binding_of,
    entry_of,
    filter_entry_of,
)
from tidelog.security.acls import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType

READ = AclBinding(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:x", "*", AclOperation.READ, PermissionType.ALLOW)
PREFIX = replace(READ, resource_name="ab", pattern_type=PatternType.PREFIXED, principal="User:y")
GROUP = replace(READ, resource_type=ResourceType.GROUP, permission=PermissionType.DENY)


def create(bench: Bench, *acls: AclBinding) -> CreateAclsResponse:
    return bench.ask(CreateAclsRequest(tuple(map(entry_of, acls))))


def delete(bench: Bench, *filters: AclFilter) -> DeleteAclsResponse:
    return bench.ask(DeleteAclsRequest(tuple(map(filter_entry_of, filters))))


def present(bench: Bench) -> set[object]:
    return {binding_of(record) for record in bench.controller.committed.acls.values()}


def test_entries_are_made_once_and_a_snapshot_keeps_them(bench: Bench) -> None:
    assert [made.error for made in create(bench, READ, PREFIX, READ).results] == [ErrorCode.NONE] * 3
    assert present(bench) == {READ, PREFIX}
    offset = bench.offset
    assert create(bench, READ).results[0].error is ErrorCode.NONE
    assert bench.offset == offset, "an entry that is there already was written again"
    image = bench.controller.committed
    assert decode_snapshot(encode_snapshot(image)) == image


def test_an_entry_that_makes_no_sense_is_refused_alone(bench: Bench) -> None:
    bad = replace(READ, resource_type=ResourceType.CLUSTER)
    answer = create(bench, bad, READ)
    assert [made.error for made in answer.results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert "kafka-cluster" in answer.results[0].error_message
    assert present(bench) == {READ}
    unknown = AclEntry("tropic", "a", "literal", "User:x", "*", "read", "allow")
    (refused,) = bench.ask(CreateAclsRequest((unknown,))).results
    assert (refused.error, "tropic" in refused.error_message) == (ErrorCode.INVALID_REQUEST, True)


def test_filters_delete_what_they_match(bench: Bench) -> None:
    create(bench, READ, PREFIX, GROUP)
    exact = AclFilter(*(getattr(READ, name) for name in AclFilter.__slots__))
    answer = delete(bench, exact, AclFilter(resource_name="abc", pattern_type=PatternType.MATCH), exact)
    assert [[binding_of(said) for said in gone.entries] for gone in answer.results] == [[READ], [PREFIX], [READ]]
    assert present(bench) == {GROUP}
    assert [gone.entries for gone in delete(bench, exact).results] == [()]
    delete(bench, AclFilter())
    assert present(bench) == set()


def test_one_request_makes_and_deletes_a_bounded_number(bench: Bench) -> None:
    most = acl_changes.CHANGES_MAX
    many = [replace(READ, resource_name=f"t{number}") for number in range(most + 1)]
    assert create(bench, *many).error is ErrorCode.INVALID_REQUEST
    assert present(bench) == set()
    assert create(bench, *many[:-1]).error is ErrorCode.NONE
    create(bench, many[-1])
    refused = delete(bench, AclFilter())
    assert (refused.error, "in parts" in refused.error_message) == (ErrorCode.INVALID_REQUEST, True)
    assert len(present(bench)) == most + 1


def test_the_entries_of_a_cluster_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ENTRIES_MAX", 2)
    answer = create(bench, READ, READ, PREFIX, GROUP, READ)
    none = ErrorCode.NONE
    assert [made.error for made in answer.results] == [none, none, none, ErrorCode.POLICY_VIOLATION, none]
    assert "at most 2 entries in the cluster" in answer.results[3].error_message
    assert create(bench, GROUP).results[0].error is ErrorCode.POLICY_VIOLATION
    assert present(bench) == {READ, PREFIX}
    delete(bench, AclFilter(resource_name="ab", pattern_type=PatternType.PREFIXED))
    assert create(bench, GROUP).results[0].error is none
    assert present(bench) == {READ, GROUP}
