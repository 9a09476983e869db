"""Calls about access control lists: this node's authorizer answers describe calls, the active controller makes changes.

Source: Kafka's ``AclApis``.
"""

from __future__ import annotations

from typing import Final

from tidelog.broker.handlers.forwarding import VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.acl_changes import id_of
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.proto.calls.acl_api import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    SaidEntry,
    binding_of,
    entry_of,
    filter_of,
)
from tidelog.proto.transport.network import CallContext
from tidelog.security.authorizer import StandardAuthorizer

DISABLED: Final = "expected an authorizer (authorizer.class.name), found none: this cluster has no access control"


class Acls:
    """``authorizer`` ``None``: there is no access control, and every call says so."""

    def __init__(self, authorizer: StandardAuthorizer | None, channel: ControllerChannel, view: MetadataView) -> None:
        self._authorizer = authorizer
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {
            DescribeAclsRequest: self.describe,
            CreateAclsRequest: self.create,
            DeleteAclsRequest: self.delete,
        }

    async def describe(self, request: DescribeAclsRequest, _: CallContext) -> DescribeAclsResponse:
        if self._authorizer is None:
            return DescribeAclsResponse(ErrorCode.SECURITY_DISABLED, error_message=DISABLED)
        wanted = filter_of(request.filter)
        if isinstance(wanted, Refusal):
            return DescribeAclsResponse(wanted.code, error_message=wanted.message)
        found = [acl for _, acl in sorted(self._authorizer.acls().items()) if wanted.matches(acl)]
        return DescribeAclsResponse(ErrorCode.NONE, tuple(map(entry_of, found)))

    async def create(self, request: CreateAclsRequest, context: CallContext) -> CreateAclsResponse:
        if self._authorizer is None:
            return CreateAclsResponse(ErrorCode.SECURITY_DISABLED, error_message=DISABLED)
        answer, _ = await forwarded(self._channel, request, context)
        results = zip(request.entries, answer.results, strict=False)
        made = [_id(said) for said, result in results if result.error is ErrorCode.NONE]
        await self._view.wait_until(lambda image: all(each in image.acls for each in made), timeout_s=VISIBLE_TIMEOUT_S)
        return answer

    async def delete(self, request: DeleteAclsRequest, context: CallContext) -> DeleteAclsResponse:
        """Delete entries. After an unknown outcome, the request is repeated; entries that the first try deleted are
        then missing from the answer."""
        if self._authorizer is None:
            return DeleteAclsResponse(ErrorCode.SECURITY_DISABLED, error_message=DISABLED)
        answer, _ = await forwarded(self._channel, request, context)
        gone = [_id(said) for result in answer.results for said in result.entries]
        await self._view.wait_until(
            lambda image: not any(each in image.acls for each in gone), timeout_s=VISIBLE_TIMEOUT_S
        )
        return answer


def _id(said: SaidEntry) -> bytes:
    acl = binding_of(said)
    assert not isinstance(acl, Refusal), "the controller refuses what it cannot read"
    return id_of(acl)
