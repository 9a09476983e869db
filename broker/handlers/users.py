"""Calls about users with passwords: described from this node's metadata, changed by the active controller.

Source: Kafka's ``KafkaApis.handleDescribeUserScramCredentialsRequest``, ``ScramPublisher``, ``ScramControlManager``.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import replace
from typing import Final

from tidelog.broker.handlers.forwarding import VISIBLE_TIMEOUT_S, forwarded
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.user_api import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedCredential,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.proto.transport.network import CallContext

NOT_SECRET: Final = (
    "expected TLS, or a client on the node's own machine: a salted password is as good as the password, and anyone "
    "on the network path could read it"
)


class Users:
    """See the module."""

    def __init__(self, channel: ControllerChannel, view: MetadataView) -> None:
        self._channel = channel
        self._view = view

    def calls(self) -> Calls:
        return {
            DescribeUserScramCredentialsRequest: self.describe,
            AlterUserScramCredentialsRequest: self.alter,
        }

    async def describe(
        self, request: DescribeUserScramCredentialsRequest, _: CallContext
    ) -> DescribeUserScramCredentialsResponse:
        found: dict[str, list[DescribedCredential]] = {}
        for (name, mechanism), record in sorted(self._view.image.users.items()):
            found.setdefault(name, []).append(DescribedCredential(mechanism, record.iterations))
        asked = Counter(request.users or tuple(found))
        return DescribeUserScramCredentialsResponse(
            ErrorCode.NONE, tuple(_described(name, found.get(name), times) for name, times in asked.items())
        )

    async def alter(
        self, request: AlterUserScramCredentialsRequest, context: CallContext
    ) -> AlterUserScramCredentialsResponse:
        if request.upsertions and not confidential(context):
            refused = (AlteredUser(name, ErrorCode.POLICY_VIOLATION, NOT_SECRET) for name in request.users)
            return AlterUserScramCredentialsResponse(ErrorCode.NONE, tuple(refused))
        answer, unknown = await forwarded(self._channel, request, context)
        if unknown:
            answer = replace(answer, results=tuple(map(_settled, answer.results)))
        done = {result.user for result in answer.results if result.error is ErrorCode.NONE}
        await self._view.wait_until(lambda image: _shows(image, request, done), timeout_s=VISIBLE_TIMEOUT_S)
        return answer


def _described(name: str, credentials: list[DescribedCredential] | None, times: int) -> DescribedUser:
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribedUser(name, ErrorCode.DUPLICATE_RESOURCE, error_message=text)
    if credentials is None:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return DescribedUser(name, ErrorCode.RESOURCE_NOT_FOUND, error_message=text)
    return DescribedUser(name, ErrorCode.NONE, tuple(credentials))


def _settled(result: AlteredUser) -> AlteredUser:
    """Handle a first try with unknown outcome: a credential that is now missing was deleted by it, or never existed."""
    return AlteredUser(result.user, ErrorCode.NONE) if result.error is ErrorCode.RESOURCE_NOT_FOUND else result


def confidential(context: CallContext) -> bool:
    """Return whether only the two ends can read the request."""
    try:
        return context.session.protocol.tls or ipaddress.ip_address(context.host).is_loopback
    except ValueError:
        return True  # without an address, it came from within this process


def _shows(image: MetadataImage, request: AlterUserScramCredentialsRequest, done: set[str]) -> bool:
    gone = (each for each in request.deletions if each.user in done)
    made = (each for each in request.upsertions if each.user in done)
    return not any((each.user, each.mechanism) in image.users for each in gone) and all(
        (known := image.users.get((each.user, each.mechanism))) is not None and known.salt == each.salt for each in made
    )
