"""Admin client calls for transactions, under the names of Kafka's ``Admin`` (KIP-664, KIP-939, KIP-994).

Calls about a transactional id go to its coordinator, calls about a partition to its leader; a list combines the answers
of all live brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.admin.base import AdminBase, found_or_raise
from tidelog.client.admin.coordinators import Asked, Deadline, Said, ask_coordinators
from tidelog.client.admin.transaction_types import (
    AbortTransactionSpec,
    FencedProducer,
    Lineage,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, TidelogError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.calls.group_api import TRANSACTION_COORDINATOR, GroupPartition
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.transaction_api import (
    DescribedTransaction,
    DescribeLineageRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    LineageEdge,
    ListTransactionsRequest,
    ProducerDescription,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

R = TypeVar("R", bound=Response)
V = TypeVar("V")

OWN_EPOCH: Final = 1
"""The version of a marker that carries its transaction's own epoch, not the next one."""

_MEANINGS: Final = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "the transactional id does not exist",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer has a later epoch: that transaction is over",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a later coordinator has written a marker: that transaction is over",
    ErrorCode.CONCURRENT_TRANSACTIONS: "its transaction is still being ended",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "request_timeout_ms is over the broker's transaction.max.timeout.ms",
}
"""Texts for errors without one from the broker, worded for an administrator."""


class TransactionAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[TransactionState | str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids in use, by name; if given, only those in these states, with these producer ids,
        or with a transaction open for longer than ``duration_ms``. Raises ``ValueError`` for an unknown state."""
        wanted = tuple(_state(state).value for state in states)
        ids = tuple(ProducerId(producer_id) for producer_id in producer_ids)
        request = ListTransactionsRequest(wanted, ids, -1 if duration_ms is None else duration_ms)
        found = {
            one.transactional_id: TransactionListing(
                one.transactional_id, one.producer_id, TransactionState.of(one.state), node
            )
            for node, answer in (await self._ask_every_broker(request, timeout)).items()
            for one in answer.transactions
        }
        return sorted(found.values(), key=lambda listing: listing.transactional_id)

    async def describe_lineage(self, *, timeout: float | None = None) -> Lineage:
        """Return which transactional ids have read from and written to which topics, as far as the live brokers
        remember: since they started, and no more than each has room for. Kafka has no such call."""
        answers = (await self._ask_every_broker(DescribeLineageRequest(), timeout)).values()
        edges: dict[tuple[str, str, bool, str], LineageEdge] = {}
        for edge in sorted((edge for answer in answers for edge in answer.edges), key=lambda edge: edge.last_ms):
            key = edge.transactional_id, edge.topic, edge.reads, edge.group_id
            if (seen := edges.get(key)) is not None:  # its coordinator has moved
                first_ms = min(seen.first_ms, edge.first_ms)
                edge = replace(edge, count=seen.count + edge.count, first_ms=first_ms)
            edges[key] = edge
        since_ms = max((answer.since_ms for answer in answers), default=-1)
        return Lineage([edges[key] for key in sorted(edges)], since_ms, sum(answer.forgotten for answer in answers))

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Return coordinator, state, identity, and the open transaction. Raises ``TransactionalIdNotFoundError``."""
        return await self._of_transactional_ids(
            transactional_ids, DescribeTransactionsRequest, _descriptions, timeout, singly=False
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, FencedProducer]:
        """Fence the producers with these ids, after aborting their open transactions, prepared or not. An unused id
        becomes used. Source: ``FenceProducersHandler``."""
        deadline_ms = self._timeout_ms(timeout)
        longest_ms = max(1, min(deadline_ms, self._config.request_timeout_ms))
        return await self._of_transactional_ids(
            transactional_ids,
            lambda ids: InitProducerIdRequest(ids[0], transaction_timeout_ms=longest_ms),
            _fenced,
            timeout,
            singly=True,
        )

    async def force_terminate_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Abort a transactional id's open transaction, prepared or not, and fence its producer (KIP-939).

        An external decision can then no longer commit a prepared transaction. Raises ``TransactionalIdNotFoundError``.
        """
        await self.describe_transactions([transactional_id], timeout=timeout)
        await self.fence_producers([transactional_id], timeout=timeout)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the producers that each partition's leader knows, by id. Raises ``UnknownTopicOrPartitionError``."""
        return await self._of_leaders(
            partitions, lambda some: DescribeProducersRequest(_items(some)), _producers, timeout
        )

    async def abort_transaction(self, spec: AbortTransactionSpec, *, timeout: float | None = None) -> None:
        """Write an abort marker into one partition, bypassing the coordinator.

        Only for a transaction that *hangs*, that is, no coordinator knows of it. Any other would be torn; end that with
        :meth:`force_terminate_transaction`. Raises ``InvalidProducerEpochError`` and
        ``TransactionCoordinatorFencedError`` if it is over, ``ValueError`` for numbers that no producer has.
        """
        for name, value in (
            ("producer id", spec.producer_id),
            ("producer epoch", spec.producer_epoch),
            ("coordinator epoch", spec.coordinator_epoch),
        ):
            if value < 0:
                raise ValueError(f"expected a {name} of 0 or more, found {value}")

        def request(some: tuple[TopicPartition, ...]) -> WriteTxnMarkersRequest:
            marker = TransactionMarker(
                ProducerId(spec.producer_id),
                ProducerEpoch(spec.producer_epoch),
                False,
                spec.coordinator_epoch,
                _items(some),
                OWN_EPOCH,
            )
            return WriteTxnMarkersRequest((marker,))

        await self._of_leaders([spec.topic_partition], request, _written, timeout)

    # --- inside ---------------------------------------------------------------------------------------

    async def _of_transactional_ids(
        self,
        transactional_ids: Iterable[str],
        request: Callable[[tuple[str, ...]], Request[R]],
        read: Callable[[R, Asked], Mapping[str, Said[V]]],
        timeout: float | None,
        *,
        singly: bool,
    ) -> dict[str, V]:
        """Ask the coordinators of these ids. Raises the first failure; see ``raise_first``."""
        self._check()
        if isinstance(transactional_ids, str):
            raise TypeError(f"expected a list of transactional ids, found the string {transactional_ids!r}")
        deadline = Deadline(self._deadline(timeout), self._config.request_timeout_ms)
        outcomes = await ask_coordinators(
            self._cluster, transactional_ids, request, read, deadline, key_type=TRANSACTION_COORDINATOR, singly=singly
        )
        return found_or_raise(outcomes)

    async def _of_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[tuple[TopicPartition, ...]], Request[R]],
        read: Callable[[R], Mapping[TopicPartition, Said[V]]],
        timeout: float | None,
    ) -> dict[TopicPartition, V]:
        """Ask the leaders of these partitions, and retry if leaders move or are missing, until the timeout. Raises the
        first failure; see ``raise_first``. A request may be carried out twice."""
        self._check()
        deadline = self._deadline(timeout)
        wanted = tuple(dict.fromkeys(TopicPartition(*at) for at in partitions))
        outcomes: dict[TopicPartition, V | TidelogError] = {}
        reasons: dict[TopicPartition, TidelogError] = {}
        failures = 0
        while missing := [at for at in wanted if at not in outcomes]:
            left_ms = deadline - self._cluster.clock.monotonic_ms()
            if left_ms <= 0:
                late = RequestTimedOutError("no answer in time")
                outcomes |= {at: reasons.get(at, late) for at in missing}
                break
            by_leader = await self._by_leader(missing, left_ms, outcomes, reasons)
            try_ms = max(1, min(deadline - self._cluster.clock.monotonic_ms(), self._config.request_timeout_ms))
            calls = (
                self._cluster.call(request(tuple(some)), timeout_ms=try_ms, node=leader)
                for leader, some in by_leader.items()
            )
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for some, answer in zip(by_leader.values(), answers, strict=True):
                if isinstance(answer, (BrokerNotAvailableError, RequestTimedOutError)):
                    reasons |= dict.fromkeys(some, answer)
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                said = read(answer)
                for at in some:
                    error, message, value = said[at]
                    if error is ErrorCode.NONE:
                        outcomes[at] = value
                        continue
                    reason = exception_for(error, f"{at}: {message}")
                    if reason.retriable:
                        reasons[at] = reason
                    else:
                        outcomes[at] = reason
            if len(outcomes) < len(wanted):
                failures += 1
                await self._pause(failures)
        return found_or_raise({at: outcomes[at] for at in wanted})

    async def _by_leader(
        self,
        partitions: list[TopicPartition],
        timeout_ms: int,
        outcomes: dict[TopicPartition, V | TidelogError],
        reasons: dict[TopicPartition, TidelogError],
    ) -> dict[NodeId, list[TopicPartition]]:
        """Group the partitions by leader. Partitions without a leader get their outcome or reason here."""
        by_leader: dict[NodeId, list[TopicPartition]] = {}
        cache = self._cluster.cache
        for at in partitions:
            try:
                await self._cluster.topic(at.topic, timeout_ms)
            except TidelogError as error:
                outcomes[at] = error
                continue
            leader = cache.leader_of(*at) if at.partition >= 0 else -1
            if leader >= 0:
                by_leader.setdefault(NodeId(leader), []).append(at)
            elif cache.partition(*at) is None:
                outcomes[at] = exception_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{at}: no such partition")
            else:
                reasons[at] = exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{at} has no leader")
        return by_leader


# --- Requests and answers --------------------------------------------------------------------------------


def _items(partitions: Iterable[TopicPartition]) -> tuple[GroupPartition, ...]:
    return tuple(GroupPartition(*at) for at in partitions)


def _descriptions(answer: DescribeTransactionsResponse, asked: Asked) -> dict[str, Said[TransactionDescription]]:
    return {
        one.transactional_id: Said(one.error, _meaning(one.error, one.error_message), _description(one, asked))
        for one in answer.transactions
    }


def _description(one: DescribedTransaction, asked: Asked) -> TransactionDescription:
    return TransactionDescription(
        one.transactional_id,
        asked.coordinator,
        TransactionState.of(one.state),
        one.producer_id,
        one.producer_epoch,
        one.transaction_timeout_ms,
        one.start_time_ms if one.start_time_ms >= 0 else None,
        tuple(sorted(TopicPartition(at.topic, at.partition) for at in one.partitions)),
    )


def _fenced(answer: InitProducerIdResponse, asked: Asked) -> dict[str, Said[FencedProducer]]:
    message = _meaning(answer.error, answer.error_message)
    return {asked.keys[0]: Said(answer.error, message, FencedProducer(answer.producer_id, answer.producer_epoch))}


def _producers(answer: DescribeProducersResponse) -> dict[TopicPartition, Said[tuple[ProducerState, ...]]]:
    return {
        TopicPartition(one.topic, one.partition): Said(
            one.error,
            _meaning(one.error, one.error_message),
            tuple(map(_producer, sorted(one.producers, key=lambda producer: producer.producer_id))),
        )
        for one in answer.partitions
    }


def _producer(one: ProducerDescription) -> ProducerState:
    return ProducerState(
        one.producer_id,
        one.producer_epoch,
        one.last_sequence,
        one.last_timestamp_ms,
        one.coordinator_epoch if one.coordinator_epoch >= 0 else None,
        one.transaction_start_offset if one.transaction_start_offset >= 0 else None,
    )


def _written(answer: WriteTxnMarkersResponse) -> dict[TopicPartition, Said[None]]:
    return {
        TopicPartition(one.topic, one.partition): Said(one.error, _meaning(one.error, ""), None)
        for marker in answer.markers
        for one in marker.results
    }


def _state(wanted: TransactionState | str) -> TransactionState:
    found = TransactionState.of(wanted)
    if found is TransactionState.UNKNOWN:
        known = ", ".join(state.value for state in TransactionState if state is not TransactionState.UNKNOWN)
        raise ValueError(f"expected a state of {known}, found {str(wanted)!r}")
    return found


def _meaning(error: ErrorCode, message: str) -> str:
    return message or _MEANINGS.get(error, error.name)
