"""One life of one member of a consumer group: the SDK's consumer, as if in a process of its own.

It polls, works on what it got, commits; and is killed, stands still, or leaves. What it asks, hears and does goes into
the history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tidelog.aio import Consumer
from tidelog.chaos.checkers.history import Polled, Positioned
from tidelog.chaos.live.client_network import ClientNetwork
from tidelog.chaos.live.group_lines import GroupScribe
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.chaos.live.lives import abandon
from tidelog.client.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    RequestTimedOutError,
    RetriableCommitFailedError,
    TidelogError,
)
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.model.ids import TopicPartition
from tidelog.proto.grpc_transport import GrpcNetwork
from tidelog.proto.network import ConnectionLost

POLL_S: Final = 0.5
ASKS: Final = 0.05
"""How often a member asks what is committed, by rounds."""
COMMITS: Final = ("auto", "sync", "async")
CLOSE_S: Final = 5.0


class GroupMember(ConsumerRebalanceListener):
    """Runs from :meth:`run` on until it leaves or dies."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        history: HistoryFile,
        rng: random.Random,
        settings: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.over = False
        """It is gone, whichever way."""
        self.done: dict[TopicPartition, int] = {}
        """Partition → behind the last record that it has worked off."""
        self._topics = list(topics)
        self._history = history
        self._rng = rng
        self._leaving = False
        self._works_s = 0.0
        self._commits = rng.choice(COMMITS)
        self._given: list[tuple[TopicPartition, int, int]] = []
        """What the last poll brought: partition, first and last offset."""
        self._scribe = GroupScribe(history, group, name, lambda: self._generation)
        self._network = ClientNetwork(GrpcNetwork(), self._scribe.asked)
        self._consumer = Consumer(
            bootstrap,
            group_id=group,
            enable_auto_commit=self._commits == "auto",
            max_poll_records=rng.choice((5, 100)),
            _network=self._network,
            **settings,
        )

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._consumer.assignment())

    @property
    def _generation(self) -> int:
        return self._consumer.group_metadata().generation_id

    async def run(self) -> None:
        """Be a member until told to leave; a static one that was replaced ends as well."""
        self._scribe.did("begins")
        await self._consumer.start()
        self._consumer.subscribe(self._topics, listener=self)
        what = "ended"
        try:
            while not self._leaving:
                await self._round()
        except FencedInstanceIdError:
            what = "fenced"
        except asyncio.CancelledError:
            what = "killed"
            raise
        finally:
            if what != "killed":
                await self._close()
            self._scribe.did(what)
            self.over = True

    def leave(self) -> None:
        """Have it close when its round is over."""
        self._scribe.did("leaves")
        self._leaving = True

    def stall(self, seconds: float) -> None:
        """Have it work for so long on what its next poll brings, and poll no more meanwhile."""
        self._scribe.did("stalls")
        self._works_s = seconds

    def stand_still(self) -> None:
        """As a process that is stopped."""
        self._scribe.did("stands-still")
        self._network.hold()

    def go_on(self) -> None:
        self._scribe.did("goes-on")
        self._network.resume()

    async def kill(self) -> None:
        """End it without a word to anybody; once its task was cancelled."""
        self._network.die()
        await abandon(self._consumer)

    async def _close(self) -> None:
        with suppress(TidelogError):
            await self._consumer.close(CLOSE_S)

    async def _round(self) -> None:
        began = self._history.now()
        records = await self._consumer.poll(POLL_S)
        ended = self._history.now()
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for record in records:
            found.setdefault(record.topic_partition, []).append((record.offset, record.value or b""))
        for at, got in found.items():
            self._given.append((at, got[0][0], got[-1][0]))
            self._history.poll(Polled(self.name, at, got, began, ended))
        if works_s := self._works_s:
            self._works_s = 0.0
            await asyncio.sleep(works_s)
        self._work_done()
        if found and self._commits == "async":
            self._consumer.commit_async()
        elif found and self._commits == "sync":
            await self._commit()
        with suppress(ConnectionLost):
            await self._network.passage()  # one that stands still has its commit ready to go
        if self._rng.random() < ASKS:
            with suppress(TidelogError):
                await self._consumer.committed(self.assignment, timeout=POLL_S)

    async def _commit(self) -> None:
        with suppress(CommitFailedError, RebalanceInProgressError, RequestTimedOutError, RetriableCommitFailedError):
            await self._consumer.commit(timeout=3.0)

    def _work_done(self) -> None:
        if self._given:
            self._scribe.did("done", ranges=[[at.topic, at.partition, a, b] for at, a, b in self._given])
        for at, _, last in self._given:
            self.done[at] = max(self.done.get(at, 0), last + 1)
        self._given.clear()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._scribe.did("owns", self.assignment, generation=self._generation)
        for at in partitions:
            self._history.position(Positioned(self.name, at))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._scribe.did("gave-up", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._scribe.did("lost", partitions)
