"""Transactions that one process prepares and another decides (KIP-939).

A token identifies a prepared transaction. Keep the token where the decision is made, for example in a row that the
deciding database transaction writes. It is neither a secret nor a promise: anybody who has it may commit or abort, and
may repeat that with the same outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final, NamedTuple, Unpack
from urllib.parse import quote, unquote

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.metrics import ClientMetrics
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.producer import ProducerConfig, ProducerSettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, exception_for
from tidelog.client.transaction_errors import Meaning, of_coordinator
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import TRANSACTION_COORDINATOR
from tidelog.proto.calls.transaction_api import EndTxnRequest
from tidelog.proto.transport.network import Network

_KIND: Final = "tidelog-prepared-1"


class PreparedTransaction(NamedTuple):
    """The content of a token. ``producer_id`` is -1 if nothing was written: then there is nothing to decide."""

    cluster_id: str
    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def token(self) -> str:
        """One line of printable ASCII."""
        numbers = f"{self.producer_id}:{self.producer_epoch}"
        return f"{_KIND}:{quote(self.cluster_id, safe='')}:{numbers}:{quote(self.transactional_id, safe='')}"

    @classmethod
    def parse(cls, token: str | bytes) -> PreparedTransaction:
        """Read a token. Raises ``ValueError``."""
        text = token.decode(errors="replace") if isinstance(token, bytes) else token
        match text.split(":"):
            case [kind, cluster_id, producer_id, epoch, transactional_id] if kind == _KIND and transactional_id:
                try:
                    return cls(unquote(cluster_id), unquote(transactional_id), int(producer_id), int(epoch))
                except ValueError:
                    pass
        raise ValueError(f"expected a token that prepare_transaction() returned, found {text[:200]!r}")


async def decide_prepared(
    bootstrap_servers: str | Sequence[str],
    token: str | bytes,
    timeout_s: float,
    *,
    committed: bool,
    _network: Network | None = None,
    _clock: Clock | None = None,
    _rng: random.Random | None = None,
    **settings: Unpack[ProducerSettings],
) -> None:
    """Call :func:`decide` with its own connection, for at most ``timeout_s`` seconds."""
    prepared = PreparedTransaction.parse(token)
    config = ProducerConfig.of(settings)
    cluster = Cluster(
        parse_bootstrap(bootstrap_servers),
        config,
        _network or default_network(config.tls(), config.login(), config.client_id),
        _clock or SystemClock(),
        _rng or random.Random(),
        ClientMetrics(),
    )
    cluster.start()
    try:
        async with asyncio.timeout(timeout_s):
            await decide(cluster, prepared, config.request_timeout_ms, committed=committed)
    except TimeoutError:
        what = "committed" if committed else "aborted"
        raise RequestTimedOutError(
            f"{prepared.transactional_id}: whether it was {what} is unknown after {timeout_s} s; try again"
        ) from None
    finally:
        await cluster.close()


async def decide(cluster: Cluster, prepared: PreparedTransaction, request_timeout_ms: int, *, committed: bool) -> None:
    """Commit or abort a prepared transaction, and retry until its coordinator has answered.

    Repeating the same decision does nothing. Raises ``InvalidTxnStateError`` if the other decision was made,
    ``ProducerFencedError`` or ``InvalidProducerEpochError`` if a later transaction of the same id has begun,
    ``InconsistentClusterIdError`` for a token from another cluster.
    """
    failures = 0
    while not cluster.cache.cluster_id:
        try:
            await cluster.refreshed()
        except BrokerNotAvailableError:
            failures += 1
            await asyncio.sleep(max(1, cluster.retry_backoff.after(failures, cluster.rng)) / 1_000)
    if prepared.cluster_id != cluster.cache.cluster_id:
        raise exception_for(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"expected a token of cluster {cluster.cache.cluster_id}, found one of {prepared.cluster_id}",
        )
    if prepared.producer_id < 0:
        return
    request = EndTxnRequest(
        prepared.transactional_id,
        ProducerId(prepared.producer_id),
        ProducerEpoch(prepared.producer_epoch),
        committed,
    )
    link = CoordinatorLink(cluster, prepared.transactional_id, TRANSACTION_COORDINATOR, request_timeout_ms)
    answer = await link.ask(request, lambda response: response.error)
    if of_coordinator(answer.error) is not Meaning.DONE:
        verb = "commit" if committed else "abort"
        message = f"{verb} {prepared.transactional_id}: {answer.error_message or answer.error.name}"
        raise exception_for(answer.error, message)
