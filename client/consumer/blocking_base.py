"""What is written by hand of ``tidelog.Consumer``: its lifecycle, and what waits in the thread that polls. The rest is
generated (``tools/dev/blocking_forms.py``)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar, Unpack

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.config.consumer import CONSUMER_DEFINITION, ConsumerSettings
from tidelog.client.consumer.consumer import AsyncConsumer
from tidelog.client.description import describes
from tidelog.client.errors import ClientClosedError
from tidelog.client.group.io_loop import CallersLoop
from tidelog.client.group.poll_steps import Steps, Wait, nested
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Network

R = TypeVar("R")
T = TypeVar("T")


@describes(CONSUMER_DEFINITION)
class BlockingConsumer:
    """Reads topics as a member of a group, or partitions that are assigned to it.

        with Consumer("localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.offset, record.value)

    A background thread, one per process, fetches ahead and keeps the place in the group; records are unpacked,
    and listeners called, in the thread that polls.
    Not for several threads at once, but :meth:`close` and :meth:`wakeup` may come from another. Settings are keyword
    arguments (:class:`ConsumerSettings`); a wrong one raises ``ConfigError``.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._data = threading.Event()
        self._in_use = threading.RLock()
        self._driver: int | None = None
        """The thread that is within a rebalance, perhaps in a listener."""
        self._wake_requested = False
        self._owns_background = _background is None
        self._background = _background or background.acquire()
        try:
            self._inner = AsyncConsumer(
                bootstrap_servers,
                _network=_network,
                _io_loop=CallersLoop(self._background),
                _clock=_clock,
                _rng=_rng,
                _on_data=self._data.set,
                _wake=self._wake,
                **settings,
            )
            self._core = self._inner._core
            self._config = self._inner._config
            self._run(self._inner.start())
        except BaseException:
            if self._owns_background:
                background.release(self._background)
            raise

    def __repr__(self) -> str:
        return self._core.shown("Consumer")

    # --- lifecycle ----------------------------------------------------------------------------------

    def _close(self, timeout: float, *, failed: bool = False) -> None:
        core = self._core
        if core.closing:
            return
        self._check_not_nested()
        core.closing = True
        self._data.set()
        try:
            if core.group is not None and not self._background.is_own_thread:
                self._leave("the consumer is being closed", timeout, failed=failed)
        finally:
            try:
                self._run(core.close())
            finally:
                core.closed = True
                if self._owns_background:
                    background.release(self._background)
                core.close_interceptors()

    def __enter__(self) -> Self:
        return self

    def _leave(self, reason: str, timeout: float, *, failed: bool) -> None:
        core, group = self._core, self._core.require_group()
        deadline = core.cluster.clock.monotonic_ms() + int(timeout * 1_000)
        with self._in_use:
            offsets = core.settled_before_last_poll() if failed else core.settled()
            try:
                self._drive(group.leaving(deadline, offsets))
            finally:
                left_ms = max(0, deadline - core.cluster.clock.monotonic_ms())
                self._run(group.leave(reason, left_ms))

    # --- polling --------------------------------------------------------------------------------------

    def _poll(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        core = self._core
        core.check_assigned()
        if core.group is not None:
            return self._poll_in_group(take, timeout)
        self._data.clear()
        core.check_woken()
        found = take()
        if found or timeout <= 0:
            return found
        self._background.check()
        deadline = time.monotonic() + timeout
        while not found:
            left = deadline - time.monotonic()
            if left <= 0 or not self._data.wait(left):
                break
            self._data.clear()
            if core.closing:
                raise ClientClosedError("this consumer was closed")
            core.check_woken()
            found = take()
        return found

    def _poll_in_group(self, take: Callable[[], list[T]], timeout: float) -> list[T]:
        group = self._core.require_group()
        self._background.check()
        deadline = time.monotonic() + timeout
        with self._in_use:
            group.poll_began()
            try:
                while True:
                    self._data.clear()
                    if self._core.closing:
                        raise ClientClosedError("this consumer was closed")
                    self._core.check_woken()
                    self._drive(group.turn())
                    found = take()
                    left = deadline - time.monotonic()
                    if found or left <= 0:
                        return found
                    self._data.wait(min(left, group.due_in_s))
            finally:
                group.poll_ended()

    def _drive(self, steps: Steps) -> None:
        """Do what the group asks for: call the user's functions, wait. Raises what it raises."""
        outermost = self._driver is None
        if outermost:
            self._driver = threading.get_ident()
        answer: BaseException | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration:
                    return
                answer = None
                try:
                    if isinstance(step, Wait):
                        left_ms = step.until_ms - self._core.cluster.clock.monotonic_ms()
                        self._data.wait(max(0, left_ms) / 1_000)
                        self._data.clear()
                    else:
                        step()
                except Exception as error:
                    answer = error
                except BaseException as error:
                    steps.throw(error)
                    raise
        finally:
            if outermost:
                self._driver = None

    def _check_not_nested(self) -> None:
        if self._driver == threading.get_ident():
            raise nested()

    def _find_position(self, partition: TopicPartition, timeout: float | None) -> int:
        return self._run(self._inner._find_position(partition, timeout))

    # --- inside ---------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._background.run(work)

    def _wake(self) -> None:
        if not self._wake_requested:
            self._wake_requested = True
            self._background.call(self._woken)

    def _woken(self) -> None:
        self._wake_requested = False
        self._core.fetcher.wake()
