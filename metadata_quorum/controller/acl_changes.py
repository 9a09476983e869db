"""CreateAcls and DeleteAcls: changes to the access control lists. Source: Kafka's ``AclControlManager``.

An entry's id is a digest of its content, so that an existing entry is found without a search
(`docs/decisions/2026-11-23-acls.md`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from tidelog.metadata_quorum.controller.decision import Decision
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.calls.acl_api import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    binding_of,
    entry_of,
    filter_of,
)
from tidelog.proto.logs.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from tidelog.security.acls import AclBinding, AclFilter, acl_fault

CHANGES_MAX: Final = 10_000
"""Most entries that one request creates or deletes (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
ENTRIES_MAX: Final = 100_000
"""Most entries in a cluster: each broker keeps them in memory, in the image and in its authorizer."""
_ID_BYTES: Final = 16


def create_acls(image: MetadataImage, request: CreateAclsRequest) -> Decision[CreateAclsResponse]:
    """Create or refuse each entry individually. Existing entries are unchanged."""
    if len(request.entries) > CHANGES_MAX:
        text = f"expected at most {CHANGES_MAX} entries in one request, found {len(request.entries)}"
        return Decision((), CreateAclsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
    made: dict[bytes, AccessControlEntryRecord] = {}
    results = []
    for said in request.entries:
        acl = binding_of(said)
        fault = acl if isinstance(acl, Refusal) else acl_fault(acl)
        if fault is not None or isinstance(acl, Refusal):
            assert fault is not None
            results.append(CreatedAcl(fault.code, fault.message))
            continue
        acl_id = id_of(acl)
        if acl_id not in image.acls and acl_id not in made:
            if len(image.acls) + len(made) >= ENTRIES_MAX:
                text = f"expected at most {ENTRIES_MAX} entries in the cluster: delete some, or use prefixed ones"
                results.append(CreatedAcl(ErrorCode.POLICY_VIOLATION, text))
                continue
            made[acl_id] = _record_of(acl_id, acl)
        results.append(CreatedAcl(ErrorCode.NONE))
    return Decision(tuple(made.values()), CreateAclsResponse(ErrorCode.NONE, tuple(results)))


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Delete every entry that a filter matches; one that several match is reported for each of them."""
    gone: dict[bytes, RemoveAccessControlEntryRecord] = {}
    results = []
    for said in request.filters:
        wanted = filter_of(said)
        if isinstance(wanted, Refusal):
            results.append(DeletedAcls(wanted.code, error_message=wanted.message))
            continue
        found = sorted(_matching(image, wanted), key=lambda each: each[0])
        gone.update((acl_id, RemoveAccessControlEntryRecord(acl_id)) for acl_id, _ in found)
        results.append(DeletedAcls(ErrorCode.NONE, tuple(entry_of(acl) for _, acl in found)))
    if len(gone) > CHANGES_MAX:
        text = f"expected filters that match at most {CHANGES_MAX} entries, found {len(gone)}: delete them in parts"
        return Decision((), DeleteAclsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
    return Decision(tuple(gone.values()), DeleteAclsResponse(ErrorCode.NONE, tuple(results)))


def id_of(acl: AclBinding) -> bytes:
    """Return the id of an entry: the same for the same content."""
    parts = (acl.resource_name, acl.principal, acl.host)
    numbers = bytes((acl.resource_type, acl.pattern_type, acl.operation, acl.permission))
    text = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hashlib.sha256(numbers + text).digest()[:_ID_BYTES]


def _matching(image: MetadataImage, wanted: AclFilter) -> Iterator[tuple[bytes, AclBinding]]:
    if (exact := wanted.exact()) is not None:
        acl_id = id_of(exact)
        if acl_id in image.acls:
            yield acl_id, exact
        return
    for acl_id, record in image.acls.items():
        acl = binding_of(record)
        assert not isinstance(acl, Refusal), f"expected an entry that was judged before it was written, found {record}"
        if wanted.matches(acl):
            yield acl_id, acl


def _record_of(acl_id: bytes, acl: AclBinding) -> AccessControlEntryRecord:
    said = entry_of(acl)
    return AccessControlEntryRecord(
        acl_id,
        said.resource_type,
        said.resource_name,
        said.pattern_type,
        said.principal,
        said.host,
        said.operation,
        said.permission,
    )
