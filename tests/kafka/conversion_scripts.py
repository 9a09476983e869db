"""Scripts of groups that have members of both protocols and change their own, to be played to Apache Kafka and to
Tidelog.

Members are named. Those whose names begin with ``c`` are classic; a coordinator gives them ids. Topics and numbers as
in :mod:`tests.kafka.heartbeat_scripts`, generations counted together with epochs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from tests.kafka.heartbeat_scripts import A, B, beat, heartbeat, join, wait_for_coordinator
from tests.kafka.wire_client import WireClient
from tidelog.model.assignors import Subscription
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.consumer_protocol import decode_assignment, encode_assignment, encode_subscription

COMMIT, JOIN, CLASSIC_BEAT, LEAVE, SYNC, DESCRIBE = 8, 11, 12, 13, 14, 15
VERSIONS: Final = {COMMIT: 9, JOIN: 9, CLASSIC_BEAT: 4, LEAVE: 5, SYNC: 5, DESCRIBE: 5}
BOUND_S: Final = 60.0

Shares: TypeAlias = Mapping[str, Sequence[int]]
Step: TypeAlias = dict[str, Any]


def partitions_of(shares: Shares) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for topic, numbers in shares.items() for number in numbers)


def c_join(
    member: str,
    topic: str = A,
    *,
    has: Shares | None = None,
    strategy: str = "cooperative-sticky",
    metadata: bytes | None = None,
    **more: Any,
) -> Step:
    """JoinGroup, without an id if the member has none yet. ``has``: what it says that it still has."""
    if metadata is None:
        metadata = encode_subscription(Subscription((topic,), owned=partitions_of(has or {})))
    protocols = [{"name": strategy, "metadata": metadata}]
    return {"api": JOIN, "member": member, "protocol_type": "consumer", "protocols": protocols, **more}


def c_sync(member: str, generation: int, shares: Mapping[str, Shares] | None = None, **more: Any) -> Step:
    """SyncGroup; a leader says what everybody gets."""
    return {"api": SYNC, "member": member, "generation_id": generation, "shares": shares or {}, **more}


def c_beat(member: str, generation: int, **more: Any) -> Step:
    return {"api": CLASSIC_BEAT, "member": member, "generation_id": generation, **more}


def leave(member: str) -> Step:
    return {"api": LEAVE, "member": member}


def commit(member: str, epoch: int, topic: str, partition: int) -> Step:
    return {"api": COMMIT, "member": member, "epoch": epoch, "at": (topic, partition)}


def sent(step: Step) -> Step:
    """The step's answer is read later."""
    return {**step, "sent": True}


def answer(member: str) -> Step:
    """The answer to what the member has sent."""
    return {"api": None, "member": member}


def by_chance(step: Step) -> Step:
    """Kafka takes any member as the leader."""
    return {**step, "by_chance": True}


def in_state(state: str) -> Step:
    """Wait until the classic group is in it, since requests on several connections overtake each other."""
    return {"api": DESCRIBE, "state": state}


ANEW: Final[Step] = {"api": DESCRIBE, "state": None}
"""The group is empty and changes its protocol: its epochs are counted from the first one again."""


def alone(member: str, strategy: str = "cooperative-sticky", **more: Any) -> list[Step]:
    """A classic group of one member, which has all of A, in generation 1."""
    static = {"group_instance_id": more["group_instance_id"]} if more else {}
    first = [] if static else [c_join(member, strategy=strategy)]
    joins = [*first, c_join(member, strategy=strategy, **more)]
    return [*joins, c_sync(member, 1, {member: {A: [0, 1, 2, 3]}}, **static)]


def pair(strategy: str) -> list[Step]:
    """A classic group of two members, which have half of A each, in generation 2."""
    return [
        c_join("c1", strategy=strategy),
        c_join("c1", strategy=strategy),
        c_sync("c1", 1, {"c1": {A: [0, 1, 2, 3]}}),
        c_join("c2", strategy=strategy),
        sent(c_join("c2", strategy=strategy)),
        in_state("PreparingRebalance"),
        c_beat("c1", 1),
        c_join("c1", strategy=strategy),
        answer("c2"),
        c_sync("c1", 2, {"c1": {A: [0, 1]}, "c2": {A: [2, 3]}}),
        c_sync("c2", 2),
    ]


CONVERSIONS: Final[Mapping[str, Sequence[Step]]] = {
    "a cooperative member, up and down": [
        *alone("c1"),
        c_beat("c1", 1),
        join("m1", A),
        c_beat("c1", 1),
        commit("c1", 1, A, 0),
        c_sync("c1", 1),
        c_join("c1", has={A: [0, 1, 2, 3]}),
        c_sync("c1", 1),
        c_beat("c1", 1),
        beat("m1", 2),
        c_join("c1", has={A: [0, 1]}),
        c_sync("c1", 2),
        c_beat("c1", 2),
        c_beat("c1", 1),
        beat("m1", 2),
        beat("m1", 2, {A: [2, 3]}),
        commit("c1", 2, A, 0),
        commit("c1", 1, A, 0),
        commit("c1", 3, A, 0),
        commit("m1", 2, A, 2),
        beat("m1", -1),
        c_beat("c1", 2),
        c_join("c1", has={A: [0, 1]}),
        c_sync("c1", 4, {"c1": {A: [0, 1, 2, 3]}}),
        c_sync("c1", 3, {"c1": {A: [0, 1, 2, 3]}}),
        c_beat("c1", 3),
        commit("c1", 3, A, 3),
        beat("m1", 2),
        leave("c1"),
    ],
    "eager members, up and down": [
        *pair("range"),
        join("m1", A, server_assignor="range"),
        c_beat("c1", 2),
        c_join("c1", strategy="range"),
        c_sync("c1", 3),
        c_beat("c2", 2),
        c_join("c2", strategy="range"),
        c_sync("c2", 3),
        beat("m1", 3),
        beat("m1", 3, {A: [3]}),
        c_beat("c2", 3),
        leave("c2"),
        c_beat("c2", 3),
        c_beat("c1", 3),
        c_join("c1", strategy="range"),
        c_sync("c1", 4),
        beat("m1", 3, {A: [3]}),
        beat("m1", 4, {A: [2, 3]}),
        c_beat("c1", 4),
    ],
    "two members are left when the group becomes classic": [
        *pair("cooperative-sticky"),
        join("m1", A, server_assignor="range"),
        beat("m1", -1),
        c_beat("c1", 2),
        c_beat("c2", 2),
        sent(c_join("c1", has={A: [0, 1]})),
        by_chance(c_join("c2", has={A: [2, 3]})),
        by_chance(answer("c1")),
        sent(c_sync("c1", 4, {"c1": {A: [0, 1]}, "c2": {A: [2, 3]}})),
        c_sync("c2", 4, {"c1": {A: [0, 1]}, "c2": {A: [2, 3]}}),
        answer("c1"),
        c_beat("c2", 4),
    ],
    "a classic member joins a group of the consumer protocol": [
        join("m1", A),
        c_join("c1"),
        c_join("c1"),
        c_sync("c1", 2),
        c_beat("c1", 2),
        beat("m1", 1, {A: [0, 1, 2, 3]}),
        c_beat("c1", 2),
        beat("m1", 1, {A: [0, 1]}),
        c_beat("c1", 2),
        c_join("c1"),
        c_sync("c1", 2),
        c_beat("c1", 2),
        commit("c1", 2, A, 2),
        commit("c1", 1, A, 2),
        c_join("c1", has={A: [2, 3]}),
        c_sync("c1", 2),
        leave("c1"),
        beat("m1", 2, {A: [0, 1]}),
        beat("m1", 3, {A: [0, 1, 2, 3]}),
    ],
    "a classic member changes its topics": [
        join("m1", A),
        c_join("c1", B),
        c_join("c1", B),
        c_sync("c1", 2),
        beat("m1", 1, {A: [0, 1, 2, 3]}),
        c_join("c1", A, has={B: [0, 1]}),
        c_sync("c1", 2),
        c_beat("c1", 2),
        c_join("c1", A),
        c_sync("c1", 3),
        beat("m1", 2, {A: [0, 1, 2, 3]}),
        beat("m1", 2, {A: [0, 1]}),
        c_beat("c1", 3),
        c_join("c1", A),
        c_sync("c1", 3),
    ],
    "static members change their protocol": [
        *alone("c1", group_instance_id="i1"),
        c_beat("c1", 1, group_instance_id="i1"),
        join("m1", A, instance_id="i1"),
        c_beat("c1", 1, group_instance_id="i1"),
        beat("m1", 1, {A: [0, 1, 2, 3]}, instance_id="i1"),
        beat("m1", -2, instance_id="i1"),
        c_join("c2", group_instance_id="i1"),
        c_sync("c2", 1, group_instance_id="i1"),
        c_beat("c2", 1, group_instance_id="i1"),
    ],
    "a classic member takes the place of a live static one": [
        join("m1", A, instance_id="i1"),
        join("m2", A, instance_id="i2"),
        c_join("c1", group_instance_id="i1"),
        c_sync("c1", 2, group_instance_id="i1"),
        beat("m1", 1, {A: [0, 1, 2, 3]}, instance_id="i1"),
        c_beat("c1", 2, group_instance_id="i1"),
        c_beat("c1", 2, group_instance_id="i2"),
    ],
    "an upgrade amid a rebalance": [
        *pair("cooperative-sticky"),
        sent(c_join("c1", B, has={A: [0, 1]})),
        in_state("PreparingRebalance"),
        join("m1", A, server_assignor="range"),
        answer("c1"),
        c_beat("c2", 2),
        c_join("c2", has={A: [2, 3]}),
        c_sync("c2", 2),
        c_join("c2", has={A: [2]}),
        c_sync("c2", 3),
        beat("m1", 3),
        c_join("c1", A, has={A: [0, 1]}),
        c_sync("c1", 3),
    ],
    "an empty group begins again": [
        join("m1", A),
        beat("m1", -1),
        ANEW,
        *alone("c1"),
        leave("c1"),
        ANEW,
        join("m1", A),
        beat("m1", -1),
        beat("m1", 1),
    ],
    "a group of another type": [
        c_join("c1", protocol_type="connect", metadata=b"\1\2"),
        c_join("c1", protocol_type="connect", metadata=b"\1\2"),
        join("m1", A),
        beat("m1", 1),
        beat("m1", -1),
    ],
    "a subscription that nobody can read": [
        c_join("c1", metadata=b"\1\2"),
        c_join("c1", metadata=b"\1\2"),
        join("m1", A),
    ],
    "what classic members are refused": [
        join("m1", A),
        c_beat("m1", 1),
        c_sync("m1", 1, protocol_name="cooperative-sticky"),
        c_join("c1", protocol_type="connect"),
        c_join("c1", metadata=b"\1\2"),
        c_join("c1", protocols=[]),
        c_join("c1", metadata=b"\1\2"),
        c_join("c1"),
        c_sync("c1", 1),
        c_sync("c1", 2, protocol_name="range"),
        c_sync("c1", 2, protocol_type="connect"),
        c_sync("c1", 2, protocol_type=None),
        c_sync("c1", 2, protocol_name=None),
        c_sync("c3", 2),
        c_beat("c1", 3),
        c_join("c2", strategy="range"),
        leave("c2"),
        beat("c1", 2),
    ],
}


class Playing:
    """A group; each of its members has a connection."""

    def __init__(self, bootstrap: str, group: str, ids: Mapping[str, bytes], stack: ExitStack) -> None:
        self._bootstrap, self._group, self._ids, self._stack = bootstrap, group, ids, stack
        self._wires: dict[str, WireClient] = {}
        self._known: dict[str, str] = {}
        """Member → the id that the coordinator gave it."""
        self._speaks: dict[str, str] = {}
        """Member → the protocol that its group has chosen."""
        self._waiting: dict[str, tuple[int, int]] = {}
        """Member → the API and number of the request whose answer it has yet to read."""
        self._later: int | None = None
        """How much later than 1 the group's first epoch is."""

    def do(self, step: Step) -> Step | None:
        """Return the answer, if the step gets one."""
        said = dict(step)
        if "api" not in said:
            return self._heartbeat(said)
        api, member = said.pop("api"), said.pop("member", "")
        if api == DESCRIBE:
            self._reach(said["state"])
            return None
        any_leader = said.pop("by_chance", False)
        if api is None:
            api, number = self._waiting.pop(member)
            read = self._read(api, member, number)
            return {**read, "leader": None, "members": None} if any_leader else read
        later = said.pop("sent", False)
        number = self._wire(member).send(api, VERSIONS[api], group_id=self._group, **self._request(api, member, said))
        self._waiting[member] = api, number
        return None if later else self.do({**answer(member), "by_chance": any_leader})

    def _heartbeat(self, said: Step) -> Step:
        wire = self._wire(said["member_id"])
        said["member_id"] = self._id(said["member_id"])
        said["member_epoch"] = self._number(said["member_epoch"])
        read = heartbeat(wire, self._group, said, self._ids)
        return {**read, "member_id": self._name(read["member_id"]), "epoch": self._from_first(read["epoch"])}

    def _request(self, api: int, member: str, said: Step) -> Step:
        found: Step = {"member_id": self._id(member), "group_instance_id": None}
        match api:
            case _ if api == JOIN:
                found |= {"session_timeout": 30_000, "rebalance_timeout": 60_000, "reason": None}
            case _ if api == SYNC:
                shares = said.pop("shares").items()
                found |= {"protocol_type": "consumer", "protocol_name": self._speaks.get(member)}
                found["assignments"] = [
                    {"member_id": self._id(name), "assignment": encode_assignment(partitions_of(share))}
                    for name, share in shares
                ]
            case _ if api == LEAVE:
                return {"members": [{**found, "reason": None}]}
            case _ if api == COMMIT:
                topic, partition = said.pop("at")
                at = {"partition_index": partition, "committed_offset": 1, "committed_leader_epoch": -1}
                found["topics"] = [{"name": topic, "partitions": [{**at, "committed_metadata": None}]}]
                found["generation_id_or_member_epoch"] = self._number(said.pop("epoch"))
        if "generation_id" in said:
            said["generation_id"] = self._number(said["generation_id"])
        return {**found, **said}

    def _read(self, api: int, member: str, number: int) -> Step:
        answer = self._wire(member).answer(api, VERSIONS[api], number)
        match api:
            case _ if api == JOIN:
                if answer.member_id:
                    self._known[member] = answer.member_id
                if not answer.error_code:
                    self._speaks[member] = answer.protocol_name
                return {
                    "error": int(answer.error_code),
                    "generation": self._from_first(answer.generation_id),
                    "protocol": answer.protocol_name,
                    "leader": self._name(answer.leader),
                    "skip": answer.skip_assignment,
                    "members": sorted(str(self._name(each.member_id)) for each in answer.members),
                }
            case _ if api == SYNC:
                given: dict[str, list[int]] = {}
                for topic, partition in decode_assignment(answer.assignment).partitions if answer.assignment else ():
                    given.setdefault(topic, []).append(partition)
                return {"error": int(answer.error_code), "protocol": answer.protocol_name, "assignment": given}
            case _ if api == LEAVE:
                return {"error": int(answer.error_code), "members": [int(each.error_code) for each in answer.members]}
            case _ if api == COMMIT:
                return {"error": int(answer.topics[0].partitions[0].error_code)}
        return {"error": int(answer.error_code)}

    def _reach(self, state: str | None) -> None:
        if state is None:
            self._later = None
            return
        until = time.monotonic() + BOUND_S
        wire = self._wire("")
        while True:
            (found,) = wire.ask(DESCRIBE, VERSIONS[DESCRIBE], groups=[self._group]).groups
            if found.group_state == state:
                return
            assert time.monotonic() < until, found.group_state
            time.sleep(0.01)

    def _wire(self, member: str) -> WireClient:
        if member not in self._wires:
            self._wires[member] = self._stack.enter_context(WireClient(self._bootstrap, member))
        return self._wires[member]

    def _id(self, member: str) -> str:
        return self._known.get(member, "" if member.startswith("c") else member)

    def _name(self, member_id: str | None) -> str | None:
        return next((name for name, known in self._known.items() if known == member_id), member_id)

    def _number(self, epoch: int) -> int:
        return epoch + (self._later or 0) if epoch > 0 else epoch

    def _from_first(self, epoch: int) -> int:
        if epoch <= 0:
            return epoch
        if self._later is None:
            self._later = epoch - 1
        return epoch - self._later


def play_conversion(bootstrap: str, script: Sequence[Step], group: str, ids: Mapping[str, bytes]) -> list[Step]:
    """The answers to a script, with members and topics by name."""
    with ExitStack() as stack:
        wait_for_coordinator(stack.enter_context(WireClient(bootstrap)), group)
        playing = Playing(bootstrap, group, ids, stack)
        return [found for step in script if (found := playing.do(step)) is not None]
