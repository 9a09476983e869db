"""Runs a link: fetches from the source's leaders, imports at the target's, keeps topics and groups like the source's.

Only the target's logs determine its progress, so it may be killed at any time, and several may run side by side: a
leader accepts a link's records only exactly at its log's end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.errors import TidelogError
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.links.batches import mask_of
from tidelog.client.links.definition import LinkDefinition, LinkError
from tidelog.client.links.following import PARTITION_BYTES_MAX, Between, Follower, NotLeader, State
from tidelog.client.links.group_offsets import copy_offsets
from tidelog.client.links.kafka_connection import SourceLost, SourceRefused
from tidelog.client.links.keeping import Kept, TopicKeeper
from tidelog.client.links.linked import LinkAdmin
from tidelog.client.links.source import Source, SourceCluster
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import ConnectionLost

UPKEEP_S: Final = 5.0
"""Interval for checking topics, settings and groups, and for storing positions."""
LEADERS_S: Final = 0.2
"""Minimum time between two requests for the source's leaders."""
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 16 * 2**20
IN_FLIGHT_BYTES_MAX: Final = 64 * 2**20
"""Maximum bytes fetched and not yet imported."""
_BUSY_WAIT_MS: Final = 10
_IDLE_S: Final = 0.05
_BACKOFF: Final = Backoff(100, 5_000)

TROUBLE: Final = (TidelogError, SourceLost, SourceRefused, ConnectionLost, TimeoutError)
"""Errors that may pass by themselves."""


class LinkRunner:
    """See the module. ``tell`` gets a line for whatever an operator should know, once."""

    def __init__(
        self, admin: LinkAdmin, source: Source, definition: LinkDefinition, tell: Callable[[str], None]
    ) -> None:
        self._admin = admin
        admin.act_for(definition.name)
        self._source = source
        self._definition = definition
        self._tell = tell
        self._told: dict[str, str] = {}
        self._raw = RawFetcher(admin.cluster, PARTITION_BYTES_MAX)
        self._followers: dict[TopicPartition, Follower] = {}
        self._busy: dict[TopicPartition, asyncio.Task[None]] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._again_at: dict[TopicPartition, float] = {}
        self._fetchers: dict[int, asyncio.Task[None]] = {}
        self._in_flight = 0
        self._leaders_wanted = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when a partition is no longer busy."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that ends a task that should not end."""
        self._rng = admin.cluster.rng
        self._between: Between | None = None
        self._keeper: TopicKeeper | None = None
        self.rounds = 0
        """Successful rounds of upkeep."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until ``stopping`` is set. Raises :class:`LinkError` if the link may not run, or no longer exists."""
        try:
            cluster_id, source = await check_ends(self._admin, self._source, self._definition)
            mask = mask_of(cluster_id, source.cluster_id)
            self._between = Between(self._admin, self._source, self._raw, self._definition.name, mask)
            self._keeper = TopicKeeper(self._admin, self._source, self._definition, cluster_id)
            await _first_of(stopping.wait(), self._upkeep(), self._leaders(), self._watch())
        finally:
            tasks = [*self._fetchers.values(), *self._busy.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(*TROUBLE):
                await self._keep_positions()
            await self._raw.close()

    # --- Upkeep ---------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        while True:
            try:
                known = await self._admin.definitions()
                if known.get(self._definition.name) != self._definition:
                    raise LinkError(f"link {self._definition.name} was deleted or changed")
                await self._round()
                self.rounds += 1
                self._say("upkeep", "")
            except TROUBLE as error:
                self._say("upkeep", f"topics and groups are waiting: {error}")
            await asyncio.sleep(UPKEEP_S)

    async def _round(self) -> None:
        assert self._keeper is not None
        cluster = await self._source.cluster()
        kept = await self._keeper.keep(cluster)
        for name, problem in kept.problems.items():
            self._say(f"topic {name}", problem)
        await self._choose(kept, cluster)
        self._lead(cluster)
        await self._move_starts()
        ends = {at: one.position for at, one in self._followers.items() if one.state is State.KNOWN}
        level = [(one, one.level_ms) for one in self._followers.values() if one.is_level]
        problems = await copy_offsets(self._admin, self._source, self._definition, ends)
        for group, problem in problems.items():
            self._say(f"group {group}", problem)
        if not problems:
            for one, level_ms in level:
                one.copied_ms = level_ms
        await self._keep_positions()

    async def _choose(self, kept: Kept, cluster: SourceCluster) -> None:
        """Follow the partitions of these topics and no others."""
        assert self._between is not None
        wanted = {at: topic for topic in kept.topics.values() for at in topic.places}
        for at, follower in list(self._followers.items()):
            topic = wanted.get(at)
            if topic is None or topic.topic_id != follower.topic_id:
                await self._leave(at)
                if topic is None:
                    self._say(f"{at}", "no longer part of this link")
        new = [at for at in wanted if at not in self._followers]
        positions = await self._admin.positions(self._definition) if new else {}
        for at in new:
            topic = wanted[at]
            source = cluster.topics[at.topic]
            if at.partition not in source.partitions:
                continue
            self._followers[at] = Follower(
                self._between,
                at,
                topic.topic_id,
                source.topic_id,
                positions.get(at),
                policies=topic.policies,
                now_ms=self._admin.cluster.clock.now_ms,
            )
        for at, follower in self._followers.items():
            if cluster.topics[at.topic].topic_id != follower.source_id:
                follower.replaced()

    async def _leave(self, at: TopicPartition) -> None:
        del self._followers[at]
        task = self._busy.get(at)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _move_starts(self) -> None:
        """Delete records here that the source has deleted. (A log that is only compacted has no start to move.)"""
        due = {}
        for at, one in self._followers.items():
            start = min(one.source_start, one.position)
            if one.state is State.KNOWN and start > one.target_start and not one.only_compacts:
                due[at] = start
        if due:
            for at, start in (await self._admin.delete_records(due)).items():
                self._followers[at].target_start = start

    async def _keep_positions(self) -> None:
        found = {at: one.as_position() for at, one in self._followers.items()}
        kept = {
            at: OffsetAndMetadata(one.offset, one.epoch, one.metadata) for at, one in found.items() if one is not None
        }
        await self._admin.alter_consumer_group_offsets(self._definition.group, kept)

    async def _watch(self) -> None:
        await self._broken

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not self._broken.done():
                self._broken.set_exception(error)

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    # --- Leaders --------------------------------------------------------------------------------------

    async def _leaders(self) -> None:
        while True:
            await self._leaders_wanted.wait()
            await asyncio.sleep(LEADERS_S)
            self._leaders_wanted.clear()
            try:
                self._lead(await self._source.cluster())
                self._say("source", "")
            except TROUBLE as error:
                self._say("source", f"cannot get the source's leaders: {error}")
                self._leaders_wanted.set()

    def _lead(self, cluster: SourceCluster) -> None:
        nodes = set()
        for at, follower in self._followers.items():
            topic = cluster.topics.get(at.topic)
            found = None if topic is None else topic.partitions.get(at.partition)
            if found is not None and found.leader_epoch >= follower.leader.leader_epoch:
                follower.leader = found
            nodes.add(follower.leader.leader)
        for node in nodes - self._fetchers.keys() - {-1}:
            self._fetchers[node] = self._start(self._fetch_from(node))

    async def _fetch_from(self, node: int) -> None:
        """Keep fetching what this broker leads."""
        turn = failures = 0
        while True:
            mine = [one for one in self._followers.values() if one.leader.leader == node and self._free(one)]
            for one in mine:
                if one.needs_preparation:
                    self._begin(one, one.prepare(), 0)
            ready = [one for one in mine if one.ready and one.at not in self._busy]
            if not ready or self._in_flight >= IN_FLIGHT_BYTES_MAX:
                self._moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_S):
                        await self._moved.wait()
                continue
            turn = (turn + 1) % len(ready)
            wanted = [one.wanted for one in ready[turn:] + ready[:turn]]
            try:
                found = await self._source.fetch(
                    node,
                    wanted,
                    wait_ms=_BUSY_WAIT_MS if self._busy else FETCH_WAIT_MS,
                    bytes_max=FETCH_BYTES_MAX,
                    partition_bytes_max=PARTITION_BYTES_MAX,
                )
                failures = 0
                self._say(f"broker {node}", "")
            except TROUBLE as error:
                failures += 1
                self._say(f"broker {node}", f"cannot fetch from broker {node} of the source: {error}")
                self._leaders_wanted.set()
                await asyncio.sleep(_BACKOFF.after(failures, self._rng) / 1000)
                continue
            for one, asked in zip(ready[turn:] + ready[:turn], wanted, strict=True):
                result = found.get(one.at)
                if result is not None and one.at in self._followers and one.ready and one.wanted == asked:
                    self._begin(one, one.take(result), len(result.records))

    def _free(self, one: Follower) -> bool:
        if one.at in self._busy or one.state is State.STOPPED:
            return False
        return asyncio.get_running_loop().time() >= self._again_at.get(one.at, 0.0)

    def _begin(self, one: Follower, work: Coroutine[Any, Any, None], size: int) -> None:
        self._in_flight += size

        async def do() -> None:
            try:
                await work
                trouble = one.trouble
            except NotLeader:
                self._leaders_wanted.set()
                trouble = "the source's leader has changed"
                one.checked = -1
            except TROUBLE as error:
                trouble = str(error)
                one.forget(trouble)
            finally:
                self._in_flight -= size
                del self._busy[one.at]
                self._moved.set()
            failures = self._failures[one.at] = self._failures.get(one.at, 0) + 1 if trouble else 0
            if trouble:
                wait_s = _BACKOFF.after(failures, self._rng) / 1000
                self._again_at[one.at] = asyncio.get_running_loop().time() + wait_s
            self._say(f"{one.at}", one.reason or (trouble if failures > 3 else ""))

        self._busy[one.at] = self._start(do())

    def _say(self, what: str, text: str) -> None:
        """Report what is new."""
        if self._told.get(what, "") != text:
            self._told[what] = text
            self._tell(f"{what}: {text or 'resolved'}")


async def check_ends(admin: LinkAdmin, source: Source, definition: LinkDefinition) -> tuple[str, SourceCluster]:
    """Return the target's cluster id, and the current source. Raises :class:`LinkError` if they are not the clusters
    that the link connects."""
    ours = (await admin.describe_cluster()).cluster_id
    theirs = await source.cluster()
    if theirs.cluster_id != definition.cluster_id:
        raise LinkError(
            f"expected cluster {definition.cluster_id} at {','.join(definition.bootstrap)}, found {theirs.cluster_id}: "
            "delete the link and create another one if the source has moved"
        )
    if ours == theirs.cluster_id:
        raise LinkError(
            f"expected a source other than this cluster ({ours}): the link would loop; name another source (--source)"
        )
    return ours, theirs


async def _first_of(*work: Coroutine[Any, Any, Any]) -> None:
    """End with the first work that ends, or raise its error."""
    tasks: Iterable[asyncio.Task[Any]] = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
