"""Consumer groups that record their members' actions, for the judge of groups.

=============  ======================================================================================================
``kind``       further fields; ``group`` and ``who`` (one incarnation of a member; not in ``done`` and ``settled``)
=============  ======================================================================================================
``join``       a JoinGroup answered without an error: ``member``, ``instance`` (static, or null),
               ``generation``, ``began``, ``ended``
``sync``       a SyncGroup likewise, and ``partitions`` that were assigned
``heartbeat``  of the consumer protocol (KIP-848): ``member``, ``epoch``, ``owned`` (partitions that it reports;
               null: as before), ``told`` (its epoch by the answer; null: none came, or a refusal), ``given``
               (partitions that it may have from then on; null: as before), ``began``, ``ended``
``commit``     ``member``, ``instance``, ``generation``, ``server``, ``offsets`` (topic, partition, offset, error each;
               null: no answer came), ``began``, ``ended``, ``outcome``
``fetched``    the committed offsets that a member got: ``generation``, ``server``, ``offsets``, ``began``, ``ended``
``member``     ``what`` a member did ``at``: ``owns`` (``partitions``, ``generation``), ``gave-up`` (``partitions``),
               ``done`` (``partition``, ``first``, ``last``), ``ended``
``settled``    after everything was repaired: ``topics``, and ``members`` with the partitions of each
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.history.recording import CLIENT_SETTINGS
from tidelog.chaos.laboratory.links.client_network import Answered, Asked
from tidelog.chaos.laboratory.workloads.client_world import Churn, LaboratoryWorld, Surroundings
from tidelog.chaos.workloads.groups import Group
from tidelog.chaos.workloads.world import partitions_of
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    IdAssignment,
)
from tidelog.proto.calls.group_api import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment
from tidelog.proto.transport.network import Address

REFUSED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""A coordinator's answers that mean: a commit was not accepted, and never will be."""


class GroupScribe:
    """Records the requests, answers and actions of a group's members: their
    :class:`~tidelog.chaos.workloads.groups.Listener`."""

    def __init__(
        self,
        history: HistoryFile,
        group: str,
        generation_of: Callable[[str], int | None],
        name_of: Callable[[str, TopicId], str | None],
    ) -> None:
        """``generation_of``: the generation that a member believes it is in; ``name_of``: a member's name for a
        topic."""
        self.done: dict[TopicPartition, int] = {}
        """Partition → the offset behind the last record that a member has processed."""
        self._history = history
        self._group = group
        self._generation_of = generation_of
        self._name_of = name_of

    def owns(self, member: str, generation: int, partitions: Iterable[TopicPartition]) -> None:
        self._did(member, "owns", generation=generation, partitions=_pairs(partitions))

    def gave_up(self, member: str, partitions: Iterable[TopicPartition]) -> None:
        self._did(member, "gave-up", partitions=_pairs(partitions))

    def gone(self, member: str) -> None:
        self._did(member, "ended")

    def handed_out(self, member: str, partition: TopicPartition, first: int, last: int) -> list[str]:
        """Do nothing: the poll is recorded already."""
        return []

    def worked_off(self, partition: TopicPartition, first: int, last: int) -> None:
        self._did("", "done", partition=_pairs([partition])[0], first=first, last=last)
        self.done[partition] = max(self.done.get(partition, 0), last + 1)

    def settled(self, topics: Sequence[str], members: Mapping[str, Sequence[TopicPartition]]) -> None:
        """Record the owners of partitions after everything is repaired."""
        self._write("settled", "", topics=list(topics), members={who: _pairs(has) for who, has in members.items()})

    def _did(self, member: str, what: str, **more: Any) -> None:
        self._write("member", member, what=what, at=self._now(), **more)

    def asked(self, who: str) -> Asked:
        """Listen to a member's requests."""
        return lambda request: self._begun(who, request)

    def _begun(self, who: str, request: Request[Any]) -> Answered | None:
        began = self._now()
        match request:
            case JoinGroupRequest() | SyncGroupRequest():
                return lambda answer, server: self._member_of(who, request, answer, began)
            case ConsumerGroupHeartbeatRequest():
                return lambda answer, server: self._beaten(who, request, answer, began)
            case OffsetCommitRequest():
                return lambda answer, server: self._committed(who, request, answer, server, began)
            case OffsetFetchRequest():
                generation = self._generation_of(who)
                return lambda answer, server: self._fetched(who, answer, server, generation, began)
            case _:
                return None

    def _member_of(
        self, who: str, request: JoinGroupRequest | SyncGroupRequest, answer: Response | None, began: float
    ) -> None:
        match request, answer:
            case JoinGroupRequest(), JoinGroupResponse(error=ErrorCode.NONE):
                self._answered(
                    "join",
                    who,
                    began,
                    member=answer.member_id,
                    instance=request.group_instance_id,
                    generation=answer.generation_id,
                )
            case SyncGroupRequest(), SyncGroupResponse(error=ErrorCode.NONE):
                try:
                    given = decode_assignment(answer.assignment).partitions if answer.assignment else ()
                except BadConsumerProtocol as error:
                    self._history.wrong(f"{who} was given an assignment that is none: {error}")
                    return
                self._answered(
                    "sync",
                    who,
                    began,
                    member=request.member_id,
                    instance=request.group_instance_id,
                    generation=request.generation_id,
                    partitions=_pairs(given),
                )

    def _beaten(self, who: str, request: ConsumerGroupHeartbeatRequest, answer: Response | None, began: float) -> None:
        taken = isinstance(answer, ConsumerGroupHeartbeatResponse) and answer.error is ErrorCode.NONE
        told = answer if taken and isinstance(answer, ConsumerGroupHeartbeatResponse) else None
        self._answered(
            "heartbeat",
            who,
            began,
            member=request.member_id,
            epoch=request.member_epoch,
            owned=self._named(who, request.owned),
            told=None if told is None else told.member_epoch,
            given=None if told is None else self._named(who, told.assignment),
        )

    def _named(self, who: str, assignment: IdAssignment | None) -> list[list[str | int | None]] | None:
        if assignment is None:
            return None
        names = {each.topic_id: self._name_of(who, each.topic_id) for each in assignment.topics}
        return [[names[each.topic_id], at] for each in assignment.topics for at in each.partitions]

    def _committed(
        self, who: str, request: OffsetCommitRequest, answer: Response | None, server: Address, began: float
    ) -> None:
        errors: dict[tuple[str, int], ErrorCode] = {}
        if isinstance(answer, OffsetCommitResponse):
            errors = {(result.topic, result.partition): result.error for result in answer.results}
        found = [errors.get((item.topic, item.partition)) for item in request.partitions]
        self._answered(
            "commit",
            who,
            began,
            member=request.member_id,
            instance=request.group_instance_id,
            generation=request.generation_id,
            server=str(server),
            offsets=[
                [item.topic, item.partition, int(item.offset), None if error is None else error.name]
                for item, error in zip(request.partitions, found, strict=True)
            ],
            outcome=_outcome(found).value,
        )

    def _fetched(
        self, who: str, answer: Response | None, server: Address, generation: int | None, began: float
    ) -> None:
        if not isinstance(answer, OffsetFetchResponse):
            return
        for group in answer.groups:
            if group.group_id == self._group and group.error is ErrorCode.NONE:
                self._answered(
                    "fetched",
                    who,
                    began,
                    generation=generation,
                    server=str(server),
                    offsets=[
                        [one.topic, one.partition, int(one.offset)]
                        for one in group.offsets
                        if one.error is ErrorCode.NONE
                    ],
                )

    def _answered(self, kind: str, who: str, began: float, **fields: Any) -> None:
        self._write(kind, who, **fields, began=began, ended=self._now())

    def _write(self, kind: str, who: str, **fields: Any) -> None:
        self._history.write(kind, group=self._group, who=who, **fields)

    def _now(self) -> float:
        return round(self._history.now(), 6)


class RecordedGroup(Group):
    """A group of a laboratory's workload."""

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        topics: Mapping[str, int],
        size: int,
        settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        is_static: Callable[[int], bool] = lambda slot: False,
        changes: Sequence[str] = (),
    ) -> None:
        """``size``: the number of members while nothing happens to the group; ``settings``: of every member, or what
        returns the next one's; ``changes``: the methods that change it."""
        self._scribe = scribe = GroupScribe(
            surroundings.history, name, lambda who: self.generation_of(who), lambda who, topic: self.name_in(who, topic)
        )
        self._laboratory = world = LaboratoryWorld(surroundings, f"group-{name}", asked=scribe.asked)
        super().__init__(
            world,
            surroundings.rng(f"group-{name}"),
            name,
            scribe,
            list(topics),
            lambda: {**CLIENT_SETTINGS, **(settings() if callable(settings) else settings)},
            prefix=f"{name}.",
            polls=(5, 100, 200),
            is_static=is_static,
        )
        self._size = size
        self._reads = topics
        self._settled = False
        self._churn = Churn(world, self, surroundings.rng(f"churn-{name}"), changes)

    @property
    def worked_off(self) -> int:
        """Return the number of processed records, counted up to the last of each partition that a member received."""
        return sum(self._scribe.done.values())

    def begin(self) -> None:
        for _ in range(self._size):
            self.add()
        self._churn.begin()

    def calm(self) -> None:
        self._churn.calm()

    def is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether anything is left to do: records, or partitions without exactly one member. Notes in the
        history when nothing is."""
        mine = partitions_of(self._reads)
        if not self.is_whole(mine) or any(self._scribe.done.get(at, 0) < ends[at] for at in mine):
            return True
        if not self._settled:
            self._settled = True
            self._scribe.settled(list(self._reads), self.assignments())
        return False

    async def close(self) -> None:
        self.kill_all()
        await self._laboratory.close()


def _outcome(errors: Iterable[ErrorCode | None]) -> Outcome:
    """Return the outcome of a whole commit: done for all of its partitions, refused for all, or otherwise unknown."""
    found = set(errors)
    if found <= {ErrorCode.NONE}:
        return Outcome.OK
    return Outcome.FAILED if found <= REFUSED else Outcome.UNKNOWN


def _pairs(partitions: Iterable[TopicPartition]) -> list[list[str | int]]:
    return [[at.topic, at.partition] for at in partitions]
