"""What is written by hand of ``tidelog.Producer``: its lifecycle, the hot path, and what waits in the caller's thread.
The rest is generated (``tools/dev/blocking_forms.py``)."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.producer import PRODUCER_DEFINITION, ProducerConfig, ProducerSettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.description import describes
from tidelog.client.errors import ClientClosedError
from tidelog.client.producer.core import ProducerCore
from tidelog.client.producer.prepared import decide_prepared
from tidelog.client.producer.transaction_scope import BlockingTransaction, Scope
from tidelog.model.clock import Clock, SystemClock
from tidelog.proto.transport.network import Network

if TYPE_CHECKING:
    from tidelog.client.consumer.blocking import Consumer

P = TypeVar("P", bound="BlockingProducer")
R = TypeVar("R")


@describes(PRODUCER_DEFINITION)
class BlockingProducer:
    """Sends records to topics.

        with Producer("localhost:9092") as producer:
            producer.send("orders", b"hello", key=b"4711")

    May be used by several threads at once. Records are collected in the calling thread; a background
    thread, one per process, sends them. Settings are keyword arguments (:class:`ProducerSettings`); a
    wrong one raises ``ConfigError``. Idempotent and acks=all unless told otherwise: a record is written
    once and in order per partition, whatever is retried. Leaving the ``with`` block flushes; so does, for
    at most five seconds, the end of a program that closes nothing.

    A producer does not survive ``fork()``: in the child its calls raise ``ClientClosedError``.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        config = ProducerConfig.of(settings)
        bootstrap = parse_bootstrap(bootstrap_servers)
        clock = _clock or SystemClock()
        self._max_block_ms = config.max_block_ms
        self._room = threading.Condition()
        self._rooms = 0
        self._wake_requested = False
        self._owns_background = _background is None
        self._core = ProducerCore(
            bootstrap,
            config,
            _network or default_network(config.tls(), config.login(), config.client_id),
            clock,
            _rng or random.Random(),
            on_room=self._on_room,
            on_wake=self._on_wake,
        )
        self._taking = self._core.taking
        self._background = _background or background.acquire()
        self._run(self._start())
        _open.add(self)

    async def _start(self) -> None:
        self._core.start()

    def __repr__(self) -> str:
        return self._core.shown("Producer")

    # --- lifecycle ----------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. The flush takes at most ``timeout`` seconds (by default, ``delivery_timeout_ms``); records
        that are not delivered by then fail with ``ClientClosedError``. May be called twice."""
        if self._core.closed:
            return
        self._core.begin_close()
        _open.discard(self)
        self._on_room()
        try:
            self._run(self._core.close(timeout))
        finally:
            if self._owns_background:
                background.release(self._background)
            self._core.close_interceptors()

    def __enter__(self) -> Self:
        return self

    # --- transactions -------------------------------------------------------------------------------

    def transaction(self: P, *, consumer: Consumer | None = None) -> BlockingTransaction[P]:
        """``with producer.transaction():`` commits at the end of the block, and aborts if an exception
        leaves it, which goes on its way.

        With a ``consumer`` of a group (``enable_auto_commit=False``) all that it has handed out since the last
        transaction is committed along; after an abort it hands out the same again. So records in and records
        out are one: each input has its effect once, whatever dies.
        """
        core = None if consumer is None else consumer._core
        return BlockingTransaction(self, Scope(self._core.require_transactions(), core), self._background)

    # --- inside ---------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._background.run(work)

    @staticmethod
    def _decide(*args: Any, _background: BackgroundLoop | None = None, **how: Any) -> None:
        """:func:`decide_prepared`, which needs no producer."""
        loop = _background or background.acquire()
        try:
            loop.run(decide_prepared(*args, **how))
        finally:
            if _background is None:
                background.release(loop)

    def _deadline(self) -> float:
        return time.monotonic() + self._max_block_ms / 1_000

    def _wait_for_room(self, rooms: int, deadline: float, size: int) -> None:
        """Block until buffer memory was freed since ``rooms`` was read. Raises ``BufferExhaustedError``."""
        core = self._core
        if self._background.is_own_thread:
            raise core.exhausted(size)  # a callback cannot wait for what only its own thread can do
        self._background.check()
        core.metrics.buffer_waits += 1
        with self._room:
            core.sender.waiting_for_room += 1
            self._on_wake()
            try:
                found = self._room.wait_for(lambda: self._rooms != rooms, max(0.0, deadline - time.monotonic()))
            finally:
                core.sender.waiting_for_room -= 1
        if core.closed:
            raise ClientClosedError("this producer is closed")
        if not found:
            raise core.exhausted(size)

    def _on_room(self) -> None:
        with self._room:
            self._rooms += 1
            self._room.notify_all()

    def _on_wake(self) -> None:
        if not self._wake_requested:
            self._wake_requested = True
            self._background.call(self._woken)

    def _woken(self) -> None:
        self._wake_requested = False
        self._core.sender.wake()

    def _forked(self) -> None:
        self._core.closed = True
        self._core.retake()


_open: weakref.WeakSet[BlockingProducer] = weakref.WeakSet()
"""Producers that a fork must leave closed in the child."""


EXIT_FLUSH_S: Final = 5.0


def _at_exit() -> None:
    """A program that ends without closing its producers does not lose what lingers: they flush, within a bound."""
    for producer in list(_open):
        with contextlib.suppress(ClientClosedError):  # its loop was stopped before it
            producer.close(EXIT_FLUSH_S)


atexit.register(_at_exit)


def _after_fork() -> None:
    for producer in list(_open):
        producer._forked()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
