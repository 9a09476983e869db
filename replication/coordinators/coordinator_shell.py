"""The shell for the partitions of a coordinator's topic that this node leads, shared by groups and transactions.

Everything runs on the event loop. A handler does everything whose order matters before it returns its future; one timer
serves all partitions; loading runs beside it, in slices. A partition's decisions are in its *shard*, which is pure.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch
from tidelog.model.moment import Moment
from tidelog.replication.coordinators.coordinator_core import CoordinatorCore
from tidelog.replication.coordinators.coordinator_loading import load
from tidelog.replication.coordinators.coordinator_log import CoordinatorLog, Token

logger = logging.getLogger(__name__)

LOAD_AGAIN_MS: Final = 1_000
LOAD_AGAIN_MS_MAX: Final = 30_000


@dataclass(slots=True, kw_only=True)
class CoordinatorCounters:
    """The shell's counters, since the node's start."""

    appends: int = 0
    failed_appends: int = 0
    loads: int = 0
    """Completely loaded partitions."""
    failed_loads: int = 0
    loaded_records: int = 0
    passed_over_records: int = 0
    """Unusable records of the log: from other software, or malformed."""
    load_ms: int = 0
    """Loading time, summed over partitions."""


A = TypeVar("A")
P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
ShardT = TypeVar("ShardT", bound=CoordinatorCore[Any, Any, Any])
EffectT = TypeVar("EffectT")


class Refused(Protocol[R_co]):
    """Builds the answer that says why a request was refused; usually the answer's class."""

    def __call__(self, error: ErrorCode, /, *, error_message: str) -> R_co: ...


class LoadStanding(enum.Enum):
    LOADING = enum.auto()
    FAILED = enum.auto()
    """Loading failed; it will be retried."""
    ACTIVE = enum.auto()


class Led(Generic[ShardT]):
    """One partition of the topic under one leader epoch."""

    __slots__ = ("epoch", "loading", "partition", "shard", "standing")

    def __init__(self, partition: int, epoch: LeaderEpoch, shard: ShardT) -> None:
        self.partition = partition
        self.epoch = epoch
        self.shard = shard
        self.standing = LoadStanding.LOADING
        self.loading: asyncio.Task[None] | None = None


class CoordinatorShell(ABC, Generic[ShardT, EffectT]):
    """See the module. Each coordinator defines how to create a shard, how to resign, and how to perform each effect."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        clock: Clock,
        log: CoordinatorLog,
        counters: CoordinatorCounters,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._clock = clock
        self._log = log
        self._counters = counters
        self._on_fatal = on_fatal
        self._led: dict[int, Led[ShardT]] = {}
        self._waiters: dict[int, Callable[[Any], None]] = {}
        self._next_waiter = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._stopped = False

    # --- What a coordinator adds ------------------------------------------------------------------------

    @abstractmethod
    def partition_for(self, key: str) -> int:
        """Return the partition that holds the state of ``key``."""

    @abstractmethod
    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> ShardT: ...

    @abstractmethod
    def _load_bytes(self) -> int:
        """Return the number of bytes to read at a time while loading."""

    @abstractmethod
    def _resign(self, led: Led[ShardT]) -> Sequence[EffectT]:
        """Release everything that depends on this partition, because the node no longer leads it."""

    @abstractmethod
    def _do(self, led: Led[ShardT], effect: EffectT) -> None: ...

    # --- Life ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer every waiter with NOT_COORDINATOR and end."""
        loading = [led.loading for led in self._led.values() if led.loading is not None]
        for partition in list(self._led):
            self.resigned(partition)
        self.kill()
        await asyncio.gather(*loading, return_exceptions=True)

    def kill(self) -> None:
        """Drop everything immediately, without answers."""
        self._stopped = True
        for led in self._led.values():
            if led.loading is not None:
                led.loading.cancel()
        self._led.clear()
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def set_partition_count(self, partitions: int) -> None:
        """Set the topic's real number of partitions."""
        self._partitions = partitions

    # --- Leadership ---------------------------------------------------------------------------------

    def elected(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """Load a partition that this node leads from now on. A known or older epoch changes nothing."""
        known = self._led.get(partition)
        if self._stopped or (known is not None and known.epoch >= leader_epoch):
            return
        self.resigned(partition)
        led = self._led[partition] = Led(partition, leader_epoch, self._new_shard(partition, leader_epoch))
        led.loading = asyncio.get_running_loop().create_task(self._load(led))
        led.loading.add_done_callback(self._ended)

    def resigned(self, partition: int, leader_epoch: LeaderEpoch | None = None) -> None:
        """Drop a partition that this node no longer leads, as of ``leader_epoch`` (None: any epoch)."""
        led = self._led.get(partition)
        if led is None or (leader_epoch is not None and led.epoch > leader_epoch):
            return
        del self._led[partition]
        if led.loading is not None:
            led.loading.cancel()
        self._perform(led, self._resign(led))

    def _is_live(self, led: Led[ShardT]) -> bool:
        return self._led.get(led.partition) is led

    def _active(self, key: str | Refusal) -> Led[ShardT] | Refusal:
        """Return the partition that answers for ``key`` now. An invalid key is refused before any lookup."""
        if isinstance(key, Refusal):
            return key
        led = self._led.get(self.partition_for(key))
        if led is None:
            return Refusal(ErrorCode.NOT_COORDINATOR)
        match led.standing:
            case LoadStanding.ACTIVE:
                return led
            case LoadStanding.LOADING:
                return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            case LoadStanding.FAILED:
                return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _actives(self) -> list[Led[ShardT]]:
        return [led for led in self._led.values() if led.standing is LoadStanding.ACTIVE]

    # --- Requests -------------------------------------------------------------------------------------

    def _ask(
        self,
        key: str | Refusal,
        refused: Refused[R],
        question: Callable[Concatenate[ShardT, Q, int, Moment, P], Sequence[EffectT]],
        request: Q,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Future[R]:
        """Pass the request to the shard of ``key``; one of the resulting effects will be the answer."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._put(partial(settle, future), key, refused, question, request, *args, **kwargs)
        return future

    def _ask_each(
        self, items: Sequence[Q], put: Callable[[Callable[[R], None], Q], None], answer: Callable[[tuple[R, ...]], A]
    ) -> asyncio.Future[A]:
        """``put`` each item individually; the answer waits for all of them."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        results: dict[int, R] = {}

        def answered(at: int, result: R) -> None:
            results[at] = result
            if len(results) == len(items):
                settle(future, answer(tuple(results[at] for at in range(len(items)))))

        if not items:
            future.set_result(answer(()))
        for at, item in enumerate(items):
            put(partial(answered, at), item)
        return future

    def _put(
        self,
        answered: Callable[[R], None],
        key: str | Refusal,
        refused: Refused[R],
        question: Callable[Concatenate[ShardT, Q, int, Moment, P], Sequence[EffectT]],
        request: Q,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        led = self._active(key)
        if isinstance(led, Refusal):
            answered(refused(led.code, error_message=led.message))
        else:
            self._perform(led, question(led.shard, request, self._wait(answered), self._now(), *args, **kwargs))

    def _look(self, key: str | Refusal, refused: Refused[R], look: Callable[[ShardT], R]) -> R:
        """Return what the shard of ``key`` knows now, without changing anything."""
        led = self._active(key)
        return refused(led.code, error_message=led.message) if isinstance(led, Refusal) else look(led.shard)

    def _list(self, look: Callable[[ShardT], Iterable[R]]) -> tuple[ErrorCode, tuple[R, ...]]:
        """Return what the loaded shards know, with COORDINATOR_LOAD_IN_PROGRESS while others are loading."""
        actives = self._actives()
        error = ErrorCode.NONE if len(actives) == len(self._led) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error, tuple(item for led in actives for item in look(led.shard))

    def _wait(self, answered: Callable[[Any], None]) -> int:
        waiter = self._next_waiter
        self._next_waiter += 1
        self._waiters[waiter] = answered
        return waiter

    def _answer(self, waiter: int, response: object) -> None:
        answered = self._waiters.pop(waiter, None)
        if answered is not None:  # otherwise it was killed meanwhile
            answered(response)

    # --- Effects ------------------------------------------------------------------------------------

    def _perform(self, led: Led[ShardT], effects: Sequence[EffectT]) -> None:
        """Perform the core's effects in order; then set the timer for its next deadline."""
        for effect in effects:
            self._do(led, effect)
        self._set_timer(led.shard.next_deadline())

    def _append(self, led: Led[ShardT], token: Token, batch: bytearray) -> None:
        self._counters.appends += 1
        outcome = asyncio.ensure_future(self._log.append(led.partition, led.epoch, batch))
        outcome.add_done_callback(partial(self._appended, led, token))

    def _appended(self, led: Led[ShardT], token: Token, outcome: asyncio.Future[ErrorCode]) -> None:
        if not self._is_live(led) or outcome.cancelled():
            return
        failure = outcome.exception()
        if failure is not None:
            self._on_fatal(failure)
            return
        error = outcome.result()
        if error is not ErrorCode.NONE:
            self._counters.failed_appends += 1
        if error is ErrorCode.NOT_COORDINATOR:
            self.resigned(led.partition)
        else:
            self._perform(led, led.shard.appended(token, error, self._now()))

    # --- Time ---------------------------------------------------------------------------------------

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def _set_timer(self, deadline: int | None) -> None:
        """Ensure that the single timer fires by ``deadline``."""
        if deadline is None or self._stopped or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay_s = max(deadline - self._clock.monotonic_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        for led in list(self._led.values()):
            deadline = led.shard.next_deadline()
            if deadline is not None and deadline <= now.monotonic_ms and led.standing is LoadStanding.ACTIVE:
                self._perform(led, led.shard.tick(now))
            else:
                self._set_timer(deadline)

    # --- Loading ------------------------------------------------------------------------------------

    async def _load(self, led: Led[ShardT]) -> None:
        """Load the partition; retry unsuccessful reads while this node leads it."""
        delay_ms = LOAD_AGAIN_MS
        counters = self._counters
        while True:
            began_ms = self._clock.monotonic_ms()
            fault = await load(led.shard.replay, self._log, led.partition, led.epoch, self._load_bytes())
            if fault is None:
                break
            counters.failed_loads += 1
            logger.error("partition %d of %s cannot be loaded: %s", led.partition, self._topic, fault)
            led.standing = LoadStanding.FAILED
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, LOAD_AGAIN_MS_MAX)
            led.shard = self._new_shard(led.partition, led.epoch)
        counters.loads += 1
        counters.load_ms += self._clock.monotonic_ms() - began_ms
        counters.loaded_records += led.shard.replayed
        counters.passed_over_records += led.shard.passed_over
        led.loading = None
        led.standing = LoadStanding.ACTIVE
        self._perform(led, led.shard.loaded(self._now()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            failure = task.exception()
            if failure is not None:
                self._on_fatal(failure)


def done(response: R) -> asyncio.Future[R]:
    """Return a future that is already done."""
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    future.set_result(response)
    return future


def settle(future: asyncio.Future[R], response: R) -> None:
    """Set the result, unless the caller has gone."""
    if not future.done():
        future.set_result(response)
