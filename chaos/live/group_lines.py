"""What a history says of consumer groups: written by their members, read by the judge of groups.

=============  ======================================================================================================
``kind``       further fields; ``group`` and ``who`` (one life of one member) always
=============  ======================================================================================================
``join``       a JoinGroup that was answered without an error: ``member``, ``instance`` (static, or null),
               ``generation``, ``began``, ``ended``
``sync``       a SyncGroup likewise, and ``partitions`` that were assigned
``commit``     ``member``, ``instance``, ``generation``, ``server``, ``offsets`` (topic, partition, offset, error each;
               null: no answer came), ``began``, ``ended``, ``outcome``
``fetched``    what is committed, as a member was told: ``generation``, ``server``, ``offsets``, ``began``, ``ended``
``member``     ``what`` a member did ``at``: ``owns`` (``partitions``, ``generation``), ``gave-up``, ``lost``, ``done``
               (``ranges``: topic, partition, first, last), ``begins``, ``leaves``, ``killed``, ``fenced``, ``ended``,
               ``stands-still``, ``goes-on``
``settled``    when all was mended: ``topics``, and ``members`` with the partitions of each
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.live.client_network import Answered
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.consumer_protocol import BadConsumerProtocol, decode_assignment
from tidelog.proto.group_api import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.network import Address
from tidelog.proto.request import Request, Response

REFUSED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""What a coordinator says of a commit that it has not taken in, and never will."""


class GroupScribe:
    """Writes down what one life of a member asks, is told and does."""

    def __init__(self, history: HistoryFile, group: str, who: str, generation: Callable[[], int]) -> None:
        """``generation``: the one in which the member believes itself."""
        self._history = history
        self._group = group
        self._who = who
        self._generation = generation

    def did(self, what: str, partitions: Iterable[TopicPartition] = (), **more: Any) -> None:
        """Write down what the member did now."""
        self._write("member", what=what, at=self._now(), partitions=_pairs(partitions), **more)

    def asked(self, request: Request[Any]) -> Answered | None:
        """For :class:`~tidelog.chaos.live.client_network.ClientNetwork`: hears what the group is asked."""
        began = self._now()
        match request:
            case JoinGroupRequest() | SyncGroupRequest():
                return lambda answer, server: self._member_of(request, answer, began)
            case OffsetCommitRequest():
                return lambda answer, server: self._committed(request, answer, server, began)
            case OffsetFetchRequest():
                generation = self._generation()
                return lambda answer, server: self._fetched(answer, server, generation, began)
            case _:
                return None

    def _member_of(self, request: JoinGroupRequest | SyncGroupRequest, answer: Response | None, began: float) -> None:
        match request, answer:
            case JoinGroupRequest(), JoinGroupResponse(error=ErrorCode.NONE):
                self._write(
                    "join",
                    member=answer.member_id,
                    instance=request.group_instance_id,
                    generation=answer.generation_id,
                    began=began,
                    ended=self._now(),
                )
            case SyncGroupRequest(), SyncGroupResponse(error=ErrorCode.NONE):
                try:
                    given = decode_assignment(answer.assignment).partitions if answer.assignment else ()
                except BadConsumerProtocol as error:
                    self._history.wrong(f"{self._who} was given an assignment that is none: {error}")
                    return
                self._write(
                    "sync",
                    member=request.member_id,
                    instance=request.group_instance_id,
                    generation=request.generation_id,
                    partitions=_pairs(given),
                    began=began,
                    ended=self._now(),
                )

    def _committed(self, request: OffsetCommitRequest, answer: Response | None, server: Address, began: float) -> None:
        errors: dict[tuple[str, int], ErrorCode] = {}
        if isinstance(answer, OffsetCommitResponse):
            errors = {(result.topic, result.partition): result.error for result in answer.results}
        found = [errors.get((item.topic, item.partition)) for item in request.partitions]
        self._write(
            "commit",
            member=request.member_id,
            instance=request.group_instance_id,
            generation=request.generation_id,
            server=str(server),
            offsets=[
                [item.topic, item.partition, int(item.offset), None if error is None else error.name]
                for item, error in zip(request.partitions, found, strict=True)
            ],
            began=began,
            ended=self._now(),
            outcome=_outcome(found).value,
        )

    def _fetched(self, answer: Response | None, server: Address, generation: int, began: float) -> None:
        if not isinstance(answer, OffsetFetchResponse):
            return
        for group in answer.groups:
            if group.group_id == self._group and group.error is ErrorCode.NONE:
                self._write(
                    "fetched",
                    generation=generation,
                    server=str(server),
                    offsets=[
                        [one.topic, one.partition, int(one.offset)]
                        for one in group.offsets
                        if one.error is ErrorCode.NONE
                    ],
                    began=began,
                    ended=self._now(),
                )

    def _write(self, kind: str, **fields: Any) -> None:
        self._history.write(kind, group=self._group, who=self._who, **fields)

    def _now(self) -> float:
        return round(self._history.now(), 6)


def _outcome(errors: Iterable[ErrorCode | None]) -> Outcome:
    """Of a whole commit: refused at once for all of its partitions, done for all, or nobody knows of each."""
    found = set(errors)
    if found <= {ErrorCode.NONE}:
        return Outcome.OK
    return Outcome.FAILED if found <= REFUSED else Outcome.UNKNOWN


def _pairs(partitions: Iterable[TopicPartition]) -> list[list[Any]]:
    return [[at.topic, at.partition] for at in partitions]
