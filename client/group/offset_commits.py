"""Commits offsets and fetches committed ones: requests to the group's coordinator, in order.

Commits go out one at a time in the order of the calls, so that none overtakes another. A commit belongs to the
generation of its call; if that is over when its turn comes, it is refused here. Source: Kafka's ``ConsumerCoordinator``
(``commitOffsetsAsync``, ``OffsetCommitResponseHandler``, ``OffsetFetchResponseHandler``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import (
    ClientClosedError,
    CommitFailedError,
    RequestTimedOutError,
    RetriableCommitFailedError,
    TidelogError,
    exception_for,
)
from tidelog.client.group.coordinator_search import CoordinatorLostError, CoordinatorSearch
from tidelog.client.group.membership import Generation, GroupMembership
from tidelog.client.group_types import OffsetAndMetadata, Offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.proto.calls.group_api import (
    GroupPartition,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResult,
)

WAITING_MAX: Final = 1_000
"""Maximum commits that wait for their turn; further ones get ``RetriableCommitFailedError``."""
_MOVED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """``sender`` is ``None`` for a consumer with manual assignment. Retried while ``retries`` are left and before
    ``deadline_ms``. ``done`` is called once, where IO runs."""

    offsets: Offsets
    sender: Generation | None
    deadline_ms: int
    retries: bool
    done: Callable[[TidelogError | None], None]


class OffsetCommitter:
    """Used only on the IO loop, except that ``lock`` guards ``membership``."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        cluster: Cluster,
        coordinator: CoordinatorSearch,
        membership: GroupMembership,
        lock: threading.Lock,
    ) -> None:
        self._config = config
        self._group_id = group_id
        self._cluster = cluster
        self._coordinator = coordinator
        self._membership = membership
        self._lock = lock
        self._waiting: deque[Commit] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        """Fail all waiting commits."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while self._waiting:
            self._waiting.popleft().done(
                ClientClosedError("this consumer was closed before the offsets were committed")
            )

    def submit(self, commit: Commit) -> None:
        """Commit when earlier commits have ended."""
        if self._closed:
            commit.done(ClientClosedError("this consumer is closed"))
        elif len(self._waiting) >= WAITING_MAX:
            commit.done(
                RetriableCommitFailedError(f"expected at most {WAITING_MAX} commits to wait: commit less often")
            )
        else:
            self._waiting.append(commit)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._work(), name="commits")

    async def commit(self, offsets: Offsets, sender: Generation | None, timeout_ms: int) -> None:
        """Commit, and retry within ``timeout_ms``. Raises the error of the last try, or ``RequestTimedOutError`` if its
        outcome is unknown."""
        ended: asyncio.Future[TidelogError | None] = asyncio.get_running_loop().create_future()

        def done(error: TidelogError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        self.submit(Commit(offsets, sender, self._cluster.clock.monotonic_ms() + timeout_ms, True, done))
        error = await ended
        if error is not None:
            raise error

    async def _work(self) -> None:
        while self._waiting:
            commit = self._waiting[0]
            try:
                error = await self._commit(commit)
            except Exception as bug:
                log.exception("a commit failed for an unknown reason")
                error = TidelogError(f"a bug in the client: {bug!r}")
            self._waiting.popleft()
            commit.done(error)

    async def _commit(self, commit: Commit) -> TidelogError | None:
        failures = 0
        while True:
            left_ms = commit.deadline_ms - self._cluster.clock.monotonic_ms()
            if left_ms <= 0:
                return RequestTimedOutError("the offsets were not committed in time, as far as this client knows")
            try:
                async with asyncio.timeout(left_ms / 1_000):
                    error = await self._try(commit, left_ms)
            except TimeoutError:
                error = RequestTimedOutError("no answer to a commit in time: it may or may not have taken effect")
            if error is None or not error.retriable:
                return error
            if not commit.retries:
                return error if isinstance(error, RetriableCommitFailedError) else _try_again(error)
            failures += 1
            left_ms = commit.deadline_ms - self._cluster.clock.monotonic_ms()
            wait_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            if left_ms <= wait_ms:
                timed_out = RequestTimedOutError(f"the offsets were not committed in time: {error}")
                timed_out.__cause__ = error
                return timed_out
            await asyncio.sleep(wait_ms / 1_000)

    async def _try(self, commit: Commit, left_ms: int) -> TidelogError | None:
        sender = commit.sender
        try:
            node = await self._coordinator.find()
        except TidelogError as error:
            return error
        sent = Generation()
        if sender is not None:
            with self._lock:
                allowed = self._membership.may_commit(sender, commit.offsets)
            if isinstance(allowed, TidelogError):
                return allowed
            sent = allowed
        request = OffsetCommitRequest(
            self._group_id,
            sent.generation_id,
            sent.member_id,
            None if sender is None else self._config.group_instance_id,
            tuple(
                OffsetCommitPartition(*at, Offset(o.offset), LeaderEpoch(o.leader_epoch), o.metadata)
                for at, o in commit.offsets.items()
            ),
        )
        try:
            response = await self._coordinator.ask(request, min(left_ms, self._config.request_timeout_ms))
        except CoordinatorLostError as error:
            return error
        self._cluster.metrics.commits += 1
        for result in response.results:
            code = result.error
            if code is ErrorCode.NONE:
                continue
            if code in _MOVED:
                self._coordinator.forget(node)
            message = f"{result.topic}-{result.partition}: {result.error_message or code.name}"
            if sender is None:
                return _unassigned(code, message)
            with self._lock:
                return self._membership.on_commit_error(sent, code, message)
        return None

    # --- what is committed --------------------------------------------------------------------------

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return each partition's committed offset, or ``None``. Retries within ``timeout_ms``, then raises the reason,
        or ``RequestTimedOutError``."""
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}
        group = OffsetFetchGroup(self._group_id, tuple(GroupPartition(*at) for at in wanted))
        deadline = self._cluster.clock.monotonic_ms() + timeout_ms
        reason: TidelogError | None = None
        failures = 0
        while (left_ms := deadline - self._cluster.clock.monotonic_ms()) > 0:
            node = None
            try:
                async with asyncio.timeout(left_ms / 1_000):
                    node = await self._coordinator.find()
                    response = await self._coordinator.ask(
                        OffsetFetchRequest((group,), require_stable=True),
                        min(left_ms, self._config.request_timeout_ms),
                    )
                found, reason = _collect(response.groups[0])
                if reason is None:
                    return {at: found.get(at) for at in wanted}
                if reason.code in _MOVED:
                    self._coordinator.forget(node)
                if not reason.retriable:
                    raise reason
            except CoordinatorLostError as error:
                reason = error
            except RequestTimedOutError:
                raise
            except TimeoutError:
                break
            failures += 1
            wait_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            await asyncio.sleep(min(wait_ms, max(0, deadline - self._cluster.clock.monotonic_ms())) / 1_000)
        raise RequestTimedOutError(f"no committed offsets within {timeout_ms} ms") from reason


def _try_again(error: TidelogError) -> TidelogError:
    failed = RetriableCommitFailedError(
        f"the commit was not accepted, as far as this client knows; you may try again: {error}"
    )
    failed.__cause__ = error
    return failed


def _unassigned(code: ErrorCode, message: str) -> TidelogError:
    """Return the error for a consumer with manual assignment."""
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        return CommitFailedError(
            f"{message}: the group has members with assignments from the coordinator; a consumer that assigns "
            "by hand needs a group_id of its own"
        )
    if code.retriable:
        return RetriableCommitFailedError(message)
    return exception_for(code, message)


def _collect(result: OffsetFetchResult) -> tuple[dict[TopicPartition, OffsetAndMetadata], TidelogError | None]:
    if result.error is not ErrorCode.NONE:
        return {}, exception_for(result.error, result.error_message or result.error.name)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for item in result.offsets:
        at = TopicPartition(item.topic, item.partition)
        if item.error is not ErrorCode.NONE:
            return {}, exception_for(item.error, f"{at}: {item.error.name}")
        if item.offset >= 0:
            found[at] = OffsetAndMetadata(item.offset, item.leader_epoch, item.metadata)
    return found, None
