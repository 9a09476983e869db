"""What is written by hand of ``tidelog.SinkWriter`` and ``tidelog.SinkLedger``: how they are made. What they do is
generated (``tools/dev/blocking_forms.py``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar, Unpack

from tidelog.client.admin.blocking import Admin
from tidelog.client.background import BackgroundLoop
from tidelog.client.config.admin import AdminSettings
from tidelog.client.config.producer import ProducerSettings
from tidelog.client.producer.blocking import Producer
from tidelog.client.sink.ledger import Sink
from tidelog.client.sink.writer import Work
from tidelog.client.sinks import SinkJob
from tidelog.model.clock import Clock
from tidelog.proto.transport.network import Network

R = TypeVar("R")


class BlockingSinkWriter:
    """Writes one task's records of a sink's batch.

        with SinkWriter("localhost:9092", job) as writer:
            writer.send_many("orders", rows)
            message = writer.prepare()

    ``job`` comes from the driver; ``attempt`` names this writer and must never be used twice (a fresh uuid if it is not
    given). What is written becomes visible when the driver commits the batch with the :class:`SinkMessage` of
    :meth:`prepare`. Leaving the block without having prepared aborts it. ``settings``: those of a producer. For one
    thread at a time.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        job: SinkJob,
        *,
        attempt: str | None = None,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._work = Work(job, attempt, _rng, settings)
        self._producer: Producer | None = None
        self._make: Callable[[], Producer] = lambda: Producer(
            bootstrap_servers,
            _network=_network,
            _background=_background,
            _clock=_clock,
            _rng=_rng,
            **self._work.settings,
        )

    def __enter__(self) -> Self:
        return self

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        assert self._producer is not None
        return self._producer._background.run(work)


class BlockingSinkLedger:
    """Decides the batches of one sink.

        with SinkLedger("localhost:9092", "orders to lake") as ledger:
            job = ledger.new_job(batch=7)
            ledger.commit_batch([task(job) for task in tasks])

    ``sink`` must belong to one sequence of batches: a new sequence that begins at 0 again needs another name, or its
    first batches are taken for those that are committed already. ``settings``: those of an admin client. May be used by
    several threads at once.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        sink: str,
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._sink = Sink(sink, _rng)
        self._admin = Admin(
            bootstrap_servers, _network=_network, _background=_background, _clock=_clock, _rng=_rng, **settings
        )

    def __enter__(self) -> Self:
        return self
